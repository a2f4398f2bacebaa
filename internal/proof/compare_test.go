package proof_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

// firstLook is when the first evidence was collected; everything in it started a day earlier.
func firstLook() time.Time { return time.Date(2026, 11, 21, 22, 0, 0, 0, time.UTC) }

func item[T any](v T) proof.Item[T] { return proof.Item[T]{Value: &v} }

func began(after time.Duration) time.Time { return firstLook().Add(-24 * time.Hour).Add(after) }

func running(id string, restarts int32, at time.Time) proof.Item[proof.Run] {
	return item(proof.Run{ID: "docker://" + id, Restarts: restarts, State: "running", StartedAt: &at})
}

func vmOf(role, id string) proof.VM {
	v := proof.VM{
		Name: role + "-" + id, Namespace: "al9qy", Pod: role + "-" + id + "-65dc9fb687-gsq6l", UID: "pod-" + id, StartTime: item(began(0)),
	}
	for _, c := range []string{"k8s-endpoint-updater", "k8s-kvm", "k8s-kvm-health", "shutdown-deferrer"} {
		v.Containers = append(v.Containers, proof.Container{Name: c, Run: running(c+"-"+id, 0, began(time.Minute))})
	}
	return v
}

func nodeOf(name string) proof.Node {
	return proof.Node{
		Name: name, UID: "node-" + name, BootID: item("boot-" + name), KubeletStart: item(began(5 * time.Minute)),
		Labels:    map[string]string{"role": "worker", "node.kubernetes.io/worker": ""},
		Addresses: []string{"Hostname " + name, "InternalIP 172.23.11.2"},
	}
}

// evidence is of one master and one worker, and of the master's etcd.
func evidence() *proof.Evidence {
	master, worker := vmOf("master", "p1l6x"), vmOf("worker", "k3m9a")
	return &proof.Evidence{
		APIVersion: "migration.giantswarm.io/v1alpha1", Kind: "Evidence", Cluster: "al9qy",
		Metadata: proof.Moment{CollectedAt: firstLook(), Tool: "migrate 0.1.0"},
		VMs:      proof.VMs{Items: []proof.VM{master, worker}},
		Nodes:    proof.Nodes{Items: []proof.Node{nodeOf(master.Pod), nodeOf(worker.Pod)}},
		Etcd: proof.Etcd{
			Cluster: "cdf818194e3a8c32", Term: item("7"), Leader: item("8e9e05c52164694d"),
			Members: []proof.Member{{ID: "8e9e05c52164694d", Name: "etcd", Started: item(began(6 * time.Minute)), Version: item("3.5.0")}},
		},
	}
}

// later is the same cluster two minutes later.
func later(alter func(*proof.Evidence)) *proof.Evidence {
	e := evidence()
	e.Metadata.CollectedAt = firstLook().Add(2 * time.Minute)
	alter(e)
	return e
}

func runOf(v *proof.VM, container string) *proof.Container {
	i := slices.IndexFunc(v.Containers, func(c proof.Container) bool { return c.Name == container })
	return &v.Containers[i]
}

// told are a proof's facts that are not the same, as result, change, subject, fact and meaning.
type told struct {
	Result  proof.Result
	Change  proof.Change
	Subject string
	Fact    string
	Meaning string
}

func tell(p *proof.Proof) []told {
	var out []told
	for _, s := range p.Subjects {
		for _, f := range s.Facts {
			if f.Result != proof.Same {
				out = append(out, told{f.Result, f.Change, string(s.Kind) + " " + s.Name, f.Name, f.Meaning})
			}
		}
	}
	return out
}

type scenario struct {
	name    string
	alter   func(*proof.Evidence)
	outcome proof.Outcome
	want    []told
}

const (
	master = "master-p1l6x-65dc9fb687-gsq6l"
	worker = "worker-k3m9a-65dc9fb687-gsq6l"
)

func scenarios() []scenario {
	now := firstLook().Add(time.Minute)
	return []scenario{
		{"nothing happened", func(*proof.Evidence) {}, proof.Untouched, nil},
		{"the VM's container restarted", func(e *proof.Evidence) {
			runOf(&e.VMs.Items[1], "k8s-kvm").Run = running("other", 1, now)
		}, proof.Touched, []told{{
			proof.Changed, proof.VMRestarted, "VM worker-k3m9a", "container k8s-kvm",
			"container k8s-kvm restarted: the VM was started anew with empty disks",
		}}},
		{"only the restart count of the VM's container rose", func(e *proof.Evidence) {
			runOf(&e.VMs.Items[1], "k8s-kvm").Run = running("k8s-kvm-k3m9a", 1, began(time.Minute))
		}, proof.Touched, []told{{
			proof.Changed, proof.VMRestarted, "VM worker-k3m9a", "container k8s-kvm",
			"container k8s-kvm restarted: the VM was started anew with empty disks",
		}}},
		{"the VM's container does not come back", func(e *proof.Evidence) {
			runOf(&e.VMs.Items[1], "k8s-kvm").Run = item(proof.Run{ID: "docker://x", Restarts: 3, State: "waiting (CrashLoopBackOff)"})
		}, proof.Touched, []told{{
			proof.Changed, proof.VMStopped, "VM worker-k3m9a", "container k8s-kvm",
			"container k8s-kvm is waiting (CrashLoopBackOff): the VM stands still, and starts anew with empty disks",
		}}},
		{"a helper container restarted", func(e *proof.Evidence) {
			runOf(&e.VMs.Items[0], "k8s-kvm-health").Run = running("other", 1, now)
		}, proof.Touched, []told{{
			proof.Changed, proof.HelperRestarted, "VM master-p1l6x", "container k8s-kvm-health",
			"container k8s-kvm-health restarted: it helps the VM, which is another container",
		}}},
		{"a helper container ended", func(e *proof.Evidence) {
			runOf(&e.VMs.Items[0], "shutdown-deferrer").Run = item(proof.Run{ID: "docker://x", State: "ended with exit code 1 (Error)"})
		}, proof.Touched, []told{{
			proof.Changed, proof.HelperStopped, "VM master-p1l6x", "container shutdown-deferrer",
			"container shutdown-deferrer is ended with exit code 1 (Error): it helps the VM, which is another container",
		}}},
		{"a pod was replaced", func(e *proof.Evidence) {
			e.VMs.Items[1].Pod, e.VMs.Items[1].UID = "worker-k3m9a-65dc9fb687-zzzzz", "another"
		}, proof.Touched, []told{{
			proof.Changed, proof.PodReplaced, "VM worker-k3m9a", "pod",
			"pod worker-k3m9a-65dc9fb687-gsq6l was replaced by worker-k3m9a-65dc9fb687-zzzzz: the VM was started anew with empty disks",
		}}},
		{"a pod was replaced under the same name", func(e *proof.Evidence) { e.VMs.Items[1].UID = "another" }, proof.Touched, []told{{
			proof.Changed, proof.PodReplaced, "VM worker-k3m9a", "pod",
			"pod worker-k3m9a-65dc9fb687-gsq6l was replaced by worker-k3m9a-65dc9fb687-gsq6l: the VM was started anew with empty disks",
		}}},
		{"a second pod came up beside the first", func(e *proof.Evidence) {
			second := vmOf("worker", "k3m9a")
			second.Pod, second.UID = "worker-k3m9a-new", "another"
			e.VMs.Items = append(e.VMs.Items, second)
		}, proof.Touched, []told{{
			proof.Changed, proof.PodAppeared, "VM worker-k3m9a", "pod", "pod worker-k3m9a-new was not there before: somebody started another VM",
		}}},
		{"a pod is gone", func(e *proof.Evidence) { e.VMs.Items = e.VMs.Items[:1] }, proof.Touched, []told{{
			proof.Changed, proof.PodGone, "VM worker-k3m9a", "pod", "pod " + worker + " is gone and none took its place: the VM no longer runs",
		}}},
		{"a pod is being deleted", func(e *proof.Evidence) { e.VMs.Items[0].DeletionTimestamp = &now }, proof.Touched, []told{{
			proof.Changed, proof.PodGoing, "VM master-p1l6x", "deletion", "pod " + master + " is being deleted: the VM stops",
		}}},
		{"a pod started anew", func(e *proof.Evidence) { e.VMs.Items[0].StartTime = item(now) }, proof.Touched, []told{{
			proof.Changed, proof.PodStartMoved, "VM master-p1l6x", "pod start", "the management cluster's kubelet started pod " + master + " anew",
		}}},
		{"a Node was re-created", func(e *proof.Evidence) { e.Nodes.Items[1].UID = "another" }, proof.Touched, []told{{
			proof.Changed, proof.NodeRecreated, "Node " + worker, "Node",
			"Node " + worker + " was deleted and registered anew: pods that ran on it may have been removed",
		}}},
		{"a Node is gone and another is there", func(e *proof.Evidence) { e.Nodes.Items[1] = nodeOf("stranger") }, proof.Touched, []told{
			{proof.Changed, proof.NodeAppeared, "Node stranger", "Node", "Node stranger was not there before: another machine joined"},
			{proof.Changed, proof.NodeGone, "Node " + worker, "Node", "Node " + worker + " is gone: it was deleted"},
		}},
		{"a guest rebooted, and its kubelet with it", func(e *proof.Evidence) {
			e.Nodes.Items[1].BootID, e.Nodes.Items[1].KubeletStart = item("another"), item(now)
		}, proof.Touched, []told{
			{proof.Changed, proof.GuestRebooted, "Node " + worker, "boot id", "the operating system of " + worker + " was booted anew"},
			{proof.Changed, proof.KubeletRestarted, "Node " + worker, "kubelet start", "the kubelet of " + worker + " was restarted at 2026-11-21 22:01:00 UTC"},
		}},
		{"a kubelet restarted", func(e *proof.Evidence) { e.Nodes.Items[0].KubeletStart = item(now) }, proof.Touched, []told{{
			proof.Changed, proof.KubeletRestarted, "Node " + master, "kubelet start", "the kubelet of " + master + " was restarted at 2026-11-21 22:01:00 UTC",
		}}},
		{"a clock was corrected a little", func(e *proof.Evidence) {
			e.Nodes.Items[0].KubeletStart = item(began(5*time.Minute + time.Second))
		}, proof.Untouched, nil},
		{"a clock was set by hours", func(e *proof.Evidence) {
			e.Nodes.Items[0].KubeletStart = item(began(3 * time.Hour))
		}, proof.Incomplete, []told{{
			proof.Unknown, "", "Node " + master, "kubelet start",
			"the start moved by 2h55m0s and still lies before the first look: the machine's clock was set, or is wrong, so this proves nothing",
		}}},
		{"an address changed", func(e *proof.Evidence) { e.Nodes.Items[1].Addresses = []string{"InternalIP 172.23.11.6"} }, proof.Touched, []told{{
			proof.Changed, proof.AddressesChanged, "Node " + worker, "addresses", worker + " reports other addresses: its network was set up anew",
		}}},
		{"a Node was adopted", func(e *proof.Evidence) {
			n := &e.Nodes.Items[1]
			n.ProviderID = "kvm://al9qy/worker-k3m9a"
			n.Annotations = map[string]string{"cluster.x-k8s.io/machine": "al9qy-k3m9a", "cluster.x-k8s.io/cluster-name": "al9qy"}
			n.Labels["node-role.kubernetes.io/worker"] = ""
			n.Labels["node.cluster.x-k8s.io/pool"] = "k3m9a"
		}, proof.Untouched, []told{
			{proof.Expected, "", "Node " + worker, "providerID", "set by migrate, when it adopts the Node"},
			{proof.Expected, "", "Node " + worker, "label node-role.kubernetes.io/worker", "written by Cluster API, from the Machine"},
			{proof.Expected, "", "Node " + worker, "label node.cluster.x-k8s.io/pool", "written by Cluster API, from the Machine"},
			{proof.Expected, "", "Node " + worker, "annotation cluster.x-k8s.io/cluster-name", "written by Cluster API, from the Machine"},
			{proof.Expected, "", "Node " + worker, "annotation cluster.x-k8s.io/machine", "written by Cluster API, from the Machine"},
		}},
		{"labels and annotations that adopting does not write", func(e *proof.Evidence) {
			n := &e.Nodes.Items[1]
			n.Labels = map[string]string{"role": "master", "new": "", "node-role.kubernetes.io/worker": ""}
			n.Annotations = map[string]string{"cluster.x-k8s.io/surprise": "1"}
		}, proof.Touched, []told{
			{proof.Changed, proof.LabelChanged, "Node " + worker, "label new", "label new was added, which adopting does not do: somebody else writes to this Node"},
			{proof.Expected, "", "Node " + worker, "label node-role.kubernetes.io/worker", "written by Cluster API, from the Machine"},
			{proof.Changed, proof.LabelChanged, "Node " + worker, "label node.kubernetes.io/worker", "label node.kubernetes.io/worker was removed, which adopting does not do: somebody else writes to this Node"},
			{proof.Changed, proof.LabelChanged, "Node " + worker, "label role", "label role was altered, which adopting does not do: somebody else writes to this Node"},
			{proof.Changed, proof.AnnotationChanged, "Node " + worker, "annotation cluster.x-k8s.io/surprise", "annotation cluster.x-k8s.io/surprise was added, which adopting does not do: somebody else writes to this Node"},
		}},
		{"etcd restarted, alone in its cluster", func(e *proof.Evidence) {
			e.Etcd.Members[0].Started, e.Etcd.Term = item(now), item("8")
		}, proof.Touched, []told{
			{proof.Changed, proof.TermChanged, "etcd ", "raft term", "the members held an election: the leader was restarted, or lost touch"},
			{proof.Changed, proof.EtcdRestarted, "etcd member etcd", "process start", "etcd member etcd was restarted at 2026-11-21 22:01:00 UTC"},
		}},
		{"etcd was restarted with another program", func(e *proof.Evidence) {
			e.Etcd.Members[0].Started, e.Etcd.Members[0].Version = item(now), item("3.5.9")
		}, proof.Touched, []told{
			{proof.Changed, proof.EtcdRestarted, "etcd member etcd", "process start", "etcd member etcd was restarted at 2026-11-21 22:01:00 UTC"},
			{proof.Changed, proof.VersionChanged, "etcd member etcd", "version", "another version of etcd runs: the member was restarted with another program"},
		}},
		{"the leader moved", func(e *proof.Evidence) { e.Etcd.Leader, e.Etcd.Term = item("1"), item("9") }, proof.Touched, []told{
			{proof.Changed, proof.TermChanged, "etcd ", "raft term", "the members held an election: the leader was restarted, or lost touch"},
			{proof.Changed, proof.LeaderMoved, "etcd ", "leader", "another member leads: the former leader was restarted, lost touch, or was told to hand over"},
		}},
		{"a member was replaced", func(e *proof.Evidence) { e.Etcd.Members[0].ID = "aa" }, proof.Touched, []told{{
			proof.Changed, proof.MemberReplaced, "etcd member etcd", "member", "member etcd was removed and added anew: it copied its data from the others",
		}}},
		{"a member was added", func(e *proof.Evidence) {
			e.Etcd.Members = append(e.Etcd.Members, proof.Member{ID: "aa", Learner: true})
		}, proof.Touched, []told{{proof.Changed, proof.MemberAppeared, "etcd member aa", "member", "member aa was not there before: somebody added it"}}},
		{"a member was removed", func(e *proof.Evidence) { e.Etcd.Members[0] = proof.Member{ID: "bb", Name: "other"} }, proof.Touched, []told{
			{proof.Changed, proof.MemberGone, "etcd member etcd", "member", "member etcd was removed from the cluster"},
			{proof.Changed, proof.MemberAppeared, "etcd member other", "member", "member other was not there before: somebody added it"},
		}},
		{"a member lost its vote", func(e *proof.Evidence) { e.Etcd.Members[0].Learner = true }, proof.Touched, []told{{
			proof.Changed, proof.MemberChanged, "etcd member etcd", "member", "member etcd has another name or vote than before",
		}}},
		{"another etcd cluster answers", func(e *proof.Evidence) { e.Etcd.Cluster = "1" }, proof.Touched, []told{{
			proof.Changed, proof.ClusterReplaced, "etcd ", "cluster id", "another etcd cluster answers: it was founded anew or restored, and the data may be others",
		}}},
		{"parts could not be read", func(e *proof.Evidence) {
			e.Nodes = proof.Nodes{Unread: "no way in"}
			e.Etcd.Members[0].Started = proof.Item[time.Time]{Unread: "403"}
			e.Etcd.Leader = proof.Item[string]{}
		}, proof.Incomplete, []told{
			{proof.Unknown, "", "Node ", "Nodes", "after: no way in"},
			{proof.Unknown, "", "etcd ", "leader", "after: not recorded"},
			{proof.Unknown, "", "etcd member etcd", "process start", "after: 403"},
		}},
		{"a restart shows although something else is unknown", func(e *proof.Evidence) {
			e.Nodes = proof.Nodes{Unread: "no way in"}
			runOf(&e.VMs.Items[0], "k8s-kvm").Run = running("other", 1, now)
		}, proof.Touched, []told{
			{proof.Changed, proof.VMRestarted, "VM master-p1l6x", "container k8s-kvm", "container k8s-kvm restarted: the VM was started anew with empty disks"},
			{proof.Unknown, "", "Node ", "Nodes", "after: no way in"},
		}},
		{"another cluster was looked at", func(e *proof.Evidence) { e.Cluster = "b4n9x" }, proof.Incomplete, []told{{
			proof.Unknown, "", "evidence ", "cluster", "the first look was at cluster al9qy, the second at cluster b4n9x",
		}}},
		{"the looks are in the wrong order", func(e *proof.Evidence) { e.Metadata.CollectedAt = firstLook() }, proof.Incomplete, []told{{
			proof.Unknown, "", "evidence ", "order", "the second look, at 2026-11-21 22:00:00 UTC, is not later than the first, at 2026-11-21 22:00:00 UTC",
		}}},
	}
}

func TestEveryChangeIsToldFromTheOthers(t *testing.T) {
	t.Parallel()
	seen := map[proof.Change]bool{}
	for _, s := range scenarios() {
		p := proof.Compare(evidence(), later(s.alter))
		assert.Equal(t, s.outcome, p.Outcome, s.name)
		assert.Equal(t, s.want, tell(p), s.name)
		total := 0
		for _, subject := range p.Subjects {
			worst := proof.Same
			for _, f := range subject.Facts {
				total++
				seen[f.Change] = true
				if f.Result == proof.Changed || worst == proof.Same || worst == proof.Expected && f.Result == proof.Unknown {
					worst = f.Result
				}
				assert.Equal(t, f.Result == proof.Changed, f.Change != "", "%s: a kind is given for changes and for nothing else", s.name)
				assert.Equal(t, f.Result == proof.Same, f.Meaning == "", "%s: what is not the same is explained", s.name)
			}
			assert.Equal(t, worst, subject.Result, s.name)
		}
		assert.Equal(t, total, p.Summary.Same+p.Summary.Expected+p.Summary.Unknown+p.Summary.Changed, s.name)
		assert.Len(t, p.Subjects, p.Summary.Subjects, s.name)
	}
	for _, change := range proof.Changes() {
		if change != proof.ProviderIDChanged {
			assert.True(t, seen[change], "no scenario shows %s", change)
		}
	}
}

func TestAProviderIDMayBeSetButNotAltered(t *testing.T) {
	t.Parallel()
	before := evidence()
	before.Nodes.Items[0].ProviderID = "kvm://one"
	for after, outcome := range map[string]proof.Outcome{"kvm://one": proof.Untouched, "kvm://two": proof.Touched, "": proof.Touched} {
		p := proof.Compare(before, later(func(e *proof.Evidence) { e.Nodes.Items[0].ProviderID = after }))
		assert.Equal(t, outcome, p.Outcome, after)
		if outcome == proof.Touched {
			assert.Equal(t, proof.ProviderIDChanged, tell(p)[0].Change)
		}
	}
}

func TestAPodWithoutTheLegacyContainerHasNoHelpers(t *testing.T) {
	t.Parallel()
	only := func(e *proof.Evidence) {
		e.VMs.Items[0].Containers = []proof.Container{{Name: "containervmm", Run: running("x", 0, began(0))}}
	}
	before := evidence()
	only(before)
	p := proof.Compare(before, later(func(e *proof.Evidence) {
		only(e)
		e.VMs.Items[0].Containers[0].Run = running("y", 1, firstLook())
	}))
	require.Len(t, tell(p), 1)
	assert.Equal(t, proof.VMRestarted, tell(p)[0].Change)
}

func TestNothingSeenIsNotUntouched(t *testing.T) {
	t.Parallel()
	empty := &proof.Evidence{Cluster: "al9qy", Metadata: proof.Moment{CollectedAt: firstLook()}}
	p := proof.Compare(empty, later(func(e *proof.Evidence) { *e = proof.Evidence{Cluster: "al9qy", Metadata: e.Metadata} }))
	assert.Equal(t, proof.Incomplete, p.Outcome)
	assert.Equal(t, 3, p.Summary.Unknown)
	assert.Contains(t, tell(p)[0].Meaning, "saw no VM")
}

func TestEveryRuleOfTheTableIsOneOfANodesAndSaysWho(t *testing.T) {
	t.Parallel()
	for _, a := range proof.Allowed() {
		assert.NotEmpty(t, a.By, a.Key)
		assert.Contains(t, []proof.Part{proof.PartLabel, proof.PartAnnotation, proof.PartProviderID}, a.Part)
		assert.Equal(t, a.Part == proof.PartProviderID, a.Key == "")
	}
}

func TestEvidenceIsReadBackStrictly(t *testing.T) {
	t.Parallel()
	saved, err := json.Marshal(evidence())
	require.NoError(t, err)
	got, err := proof.ReadEvidence(saved)
	require.NoError(t, err)
	assert.Equal(t, evidence(), got)
	for name, data := range map[string]string{
		"nothing": "", "an unknown key": `{"kind": "Evidence", "x": 1}`, "another kind": `{"apiVersion": "migration.giantswarm.io/v1alpha1", "kind": "Plan"}`,
		"another version": `{"apiVersion": "migration.giantswarm.io/v2", "kind": "Evidence"}`,
		"two documents":   string(saved) + string(saved),
	} {
		_, err := proof.ReadEvidence([]byte(data))
		assert.ErrorContains(t, err, "reading evidence", name)
	}
}
