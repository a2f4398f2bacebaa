package report_test

import (
	"encoding/xml"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

func item[T any](v T) proof.Item[T] { return proof.Item[T]{Value: &v} }

func runAt(id string, restarts int32, at time.Time) proof.Item[proof.Run] {
	return item(proof.Run{ID: "docker://" + digest(len(id))[7:], Restarts: restarts, State: "running", StartedAt: &at})
}

// evidenceOfAl9qy is what a look at the small cluster of the plans shows.
func evidenceOfAl9qy() *proof.Evidence {
	started := madeAt().Add(-26 * time.Hour)
	e := &proof.Evidence{
		APIVersion: apiVersion, Kind: "Evidence", Cluster: "al9qy", Metadata: proof.Moment{CollectedAt: madeAt(), Tool: "migrate 0.1.0"},
		Etcd: proof.Etcd{Cluster: "cdf818194e3a8c32", Term: item("4"), Leader: item("8e9e05c52164694d"), Members: []proof.Member{
			{ID: "8e9e05c52164694d", Name: "etcd", Started: item(started.Add(9*time.Minute + 370*time.Millisecond)), Version: item("3.5.0")},
		}},
	}
	for i, m := range []struct{ name, pod, role string }{
		{"master-p1l6x", "master-p1l6x-65dc9fb687-gsq6l", "master"},
		{"worker-k3m9a", "worker-k3m9a-59dc7cfd98-7lq6r", "worker"},
		{"worker-v5n0e", "worker-v5n0e-6c95768f96-2d59g", "worker"},
		{"worker-z7t2c", "worker-z7t2c-5b67fdf895-lqshc", "worker"},
	} {
		vm := proof.VM{Name: m.name, Namespace: "al9qy", Pod: m.pod, UID: fmt.Sprintf("d962e502-e97a-47b2-9f0a-be5fad434f%02d", i), StartTime: item(started)}
		for _, c := range []string{"k8s-endpoint-updater", "k8s-kvm", "k8s-kvm-health", "shutdown-deferrer"} {
			vm.Containers = append(vm.Containers, proof.Container{Name: c, Run: runAt(c+m.name, 0, started.Add(2*time.Minute))})
		}
		e.VMs.Items = append(e.VMs.Items, vm)
		e.Nodes.Items = append(e.Nodes.Items, proof.Node{
			Name: m.pod, UID: fmt.Sprintf("81880b1d-9c96-42ab-b3e4-bb5f716ddb%02d", i), BootID: item(fmt.Sprintf("d58dfebe-d05c-4ede-adad-4a9ded9ee4%02d", i)),
			KubeletStart: item(started.Add(8 * time.Minute)), Addresses: []string{"Hostname " + m.pod, fmt.Sprintf("InternalIP 172.23.23.%d", 2+4*i)},
			Labels: map[string]string{"role": m.role, "kubernetes.io/hostname": m.pod, "node.kubernetes.io/" + m.role: ""},
		})
	}
	return e
}

// adopted is the second look, after everything that adopting does to Nodes.
func adopted() *proof.Evidence {
	e := evidenceOfAl9qy()
	e.Metadata.CollectedAt = madeAt().Add(7 * time.Minute)
	for i := range e.Nodes.Items {
		n := &e.Nodes.Items[i]
		n.ProviderID = "kvm://al9qy/" + e.VMs.Items[i].Name
		n.Annotations = map[string]string{"cluster.x-k8s.io/cluster-name": "al9qy", "cluster.x-k8s.io/machine": "al9qy-" + e.VMs.Items[i].Name}
	}
	return e
}

// proofOfAdoption is the proof everybody hopes for.
func proofOfAdoption() *proof.Proof { return proof.Compare(evidenceOfAl9qy(), adopted()) }

// proofOfRestarts shows many of the things that can go wrong, at once.
func proofOfRestarts() *proof.Proof {
	now := madeAt().Add(5 * time.Minute)
	e := adopted()
	e.VMs.Items[1].Containers[1].Run = runAt("another", 1, now)
	e.VMs.Items[2].Pod, e.VMs.Items[2].UID = "worker-v5n0e-6c95768f96-zzzzz", "5b2b6f49-2a3b-4f0b-8f1e-000000000000"
	e.Nodes.Items[1].BootID, e.Nodes.Items[1].KubeletStart = item("00000000-d05c-4ede-adad-4a9ded9ee400"), item(now.Add(time.Minute))
	e.Nodes.Items[3].KubeletStart = proof.Item[time.Time]{Unread: "asking the kubelet through the API server: the server answers 503 Service Unavailable"}
	e.Etcd.Term, e.Etcd.Members[0].Started = item("5"), item(now)
	return proof.Compare(evidenceOfAl9qy(), e)
}

// proofWithGaps could not read everything.
func proofWithGaps() *proof.Proof {
	before := evidenceOfAl9qy()
	before.Etcd = proof.Etcd{Unread: "asking etcd at https://etcd.al9qy.k8s.anubis.example.test:443 for its member list: context deadline exceeded"}
	e := adopted()
	e.Nodes.Items[0].KubeletStart = proof.Item[time.Time]{Unread: "asking the kubelet through the API server: 403 Forbidden"}
	return proof.Compare(before, e)
}

// poisonedProof has s in every place that comes from a cluster.
func poisonedProof(s string) *proof.Proof {
	vm := proof.VM{Name: s, Namespace: s, Pod: s, UID: s, StartTime: proof.Item[time.Time]{Unread: s}, Containers: []proof.Container{{Name: s, Run: item(proof.Run{ID: s, State: s})}}}
	node := proof.Node{Name: s, UID: s, ProviderID: s, Labels: map[string]string{s: s, "a": s}, Annotations: map[string]string{s: s}, BootID: item(s), KubeletStart: proof.Item[time.Time]{Unread: s}, Addresses: []string{s}}
	look := func() *proof.Evidence {
		return &proof.Evidence{
			APIVersion: apiVersion, Kind: "Evidence", Cluster: s, Metadata: proof.Moment{CollectedAt: madeAt(), Tool: s},
			VMs: proof.VMs{Items: []proof.VM{vm}}, Nodes: proof.Nodes{Items: []proof.Node{node}},
			Etcd: proof.Etcd{Cluster: s, Term: item(s), Leader: item(s), Members: []proof.Member{{ID: s, Name: s, Started: proof.Item[time.Time]{Unread: s}, Version: item(s)}}},
		}
	}
	before, after := look(), look()
	after.Cluster += "x"
	after.VMs.Items[0].Containers[0].Run = item(proof.Run{ID: s + "x", State: s + "x"})
	after.Nodes.Items[0].UID += "x"
	after.Nodes.Items[0].Labels["a"] += "x"
	after.Etcd.Leader = item(s + "x")
	after.Etcd.Members[0].ID += "x"
	return proof.Compare(before, after)
}

func TestJUnitOfAProofFailsForEveryChange(t *testing.T) {
	var suites struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Errors   int `xml:"errors,attr"`
	}
	for name, p := range map[string]*proof.Proof{"restarts": proofOfRestarts(), "adoption": proofOfAdoption(), "gaps": proofWithGaps()} {
		require.NoError(t, xml.Unmarshal(render(t, "junit", p, report.Options{}), &suites), name)
		n := p.Summary
		assert.Equal(t, []int{n.Same + n.Expected + n.Unknown + n.Changed, n.Changed, n.Unknown}, []int{suites.Tests, suites.Failures, suites.Errors}, name)
	}
	broken := proofOfAdoption()
	broken.Subjects[0].Facts[0].Result = "maybe"
	require.ErrorContains(t, report.Render(t.Output(), "junit", broken, report.Options{}), `unknown result "maybe"`)
}

func TestEveryChangeIsToldToACustomer(t *testing.T) {
	for _, change := range proof.Changes() {
		p := proofOfAdoption()
		f := &p.Subjects[0].Facts[0]
		f.Result, f.Change, p.Outcome = proof.Changed, change, proof.Touched
		out := string(render(t, "text", p, report.Options{Audience: report.Customer}))
		assert.Contains(t, out, "("+string(change)+")")
		assert.NotContains(t, out, "Something changed.", change)
	}
}
