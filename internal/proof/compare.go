package proof

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
)

const (
	// A process' start is computed from the machine's boot time, which moves by up to a second when the clock is corrected.
	startTolerance = 2 * time.Second
	// A process that was restarted after the first look started after it, as far as the clocks of two machines agree. A start that
	// moved and still lies further back is the work of a clock that was set.
	clockSlack = time.Minute
)

// Compare compares two looks at one cluster. It reads no clock and asks nobody. Steps: see whether the two can be compared, then
// compare VMs, Nodes, the etcd cluster and its members one by one, and count.
func Compare(before, after *Evidence) *Proof {
	p := &Proof{
		APIVersion: migrationv1alpha1.APIVersion, Kind: migrationv1alpha1.KindProof, Cluster: before.Cluster,
		Metadata: Metadata{Before: before.Metadata.CollectedAt, After: after.Metadata.CollectedAt, Tool: after.Metadata.Tool},
		Allowed:  Allowed(), Before: *before, After: *after, Subjects: []Subject{},
	}
	p.add(compareEvidence(before, after))
	p.add(compareVMs(before.VMs, after.VMs, after.Course)...)
	p.add(compareNodes(before, after)...)
	p.add(compareEtcd(before, after)...)
	p.Outcome = p.Summary.outcome()
	return p
}

// add counts the facts of subjects; a subject without facts is left out.
func (p *Proof) add(subjects ...Subject) {
	for _, s := range subjects {
		if len(s.Facts) == 0 {
			continue
		}
		s.Result = Same
		for _, f := range s.Facts {
			s.Result = worse(s.Result, f.Result)
			p.Summary.count(f.Result)
		}
		p.Summary.Subjects++
		p.Subjects = append(p.Subjects, s)
	}
}

func (s *Summary) count(r Result) {
	switch r {
	case Same:
		s.Same++
	case Expected:
		s.Expected++
	case Unknown:
		s.Unknown++
	case Changed:
		s.Changed++
	}
}

func (s *Summary) outcome() Outcome {
	switch {
	case s.Changed > 0:
		return Touched
	case s.Unknown > 0:
		return Incomplete
	}
	return Untouched
}

func worse(a, b Result) Result {
	order := []Result{Same, Expected, Unknown, Changed}
	return order[max(slices.Index(order, a), slices.Index(order, b))]
}

func same(name, value string) Fact {
	return Fact{Name: name, Result: Same, Before: value, After: value}
}

func changed(name string, change Change, before, after, meaning string, args ...any) Fact {
	return Fact{Name: name, Result: Changed, Before: before, After: after, Change: change, Meaning: fmt.Sprintf(meaning, args...)}
}

func unknown(name, why string, args ...any) Fact {
	return Fact{Name: name, Result: Unknown, Meaning: fmt.Sprintf(why, args...)}
}

// compareEvidence finds out whether there are two looks at the same cluster, one after the other.
func compareEvidence(before, after *Evidence) Subject {
	s := Subject{Kind: SubjectEvidence}
	if before.Cluster != after.Cluster {
		s.Facts = append(s.Facts, unknown("cluster", "the first look was at cluster %s, the second at cluster %s", before.Cluster, after.Cluster))
	}
	if !after.Metadata.CollectedAt.After(before.Metadata.CollectedAt) {
		s.Facts = append(s.Facts, unknown("order", "the second look, at %s, is not later than the first, at %s",
			spell(after.Metadata.CollectedAt), spell(before.Metadata.CollectedAt)))
	}
	return s
}

// readable returns why a list cannot be compared; empty when it can. A first look that saw nothing proves nothing.
func readable(what, before, after string, seen int) string {
	switch {
	case before != "":
		return "before: " + before
	case after != "":
		return "after: " + after
	case seen == 0:
		return "the first look saw no " + what + ", so there is nothing to compare"
	}
	return ""
}

func compareVMs(before, after VMs, course Course) []Subject {
	if why := readable("VM", before.Unread, after.Unread, len(before.Items)); why != "" {
		return []Subject{{Kind: SubjectVM, Facts: []Fact{unknown("pods", "%s", why)}}}
	}
	taken := map[string]bool{}
	find := func(match func(VM) bool) *VM {
		i := slices.IndexFunc(after.Items, func(v VM) bool { return !taken[v.UID] && match(v) })
		if i < 0 {
			return nil
		}
		taken[after.Items[i].UID] = true
		return &after.Items[i]
	}
	// First every pod that is still there, so that a replacement is not looked for among them.
	still := make([]*VM, len(before.Items))
	for i, v := range before.Items {
		still[i] = find(func(now VM) bool { return now.UID == v.UID })
	}
	var subjects []Subject
	for i, v := range before.Items {
		s := Subject{Kind: SubjectVM, Name: v.Name}
		if now := still[i]; now != nil {
			s.Facts = course.whole(v.Pod, compareVM(v, *now))
		} else if now := find(func(now VM) bool { return now.Name == v.Name }); now != nil {
			s.Facts = []Fact{changed("pod", PodReplaced, v.identity(), now.identity(),
				"pod %s was replaced by %s: the VM was started anew with empty disks", v.Pod, now.Pod)}
		} else {
			s.Facts = []Fact{course.gone(v.Pod, changed("pod", PodGone, v.identity(), none, "pod %s is gone and none took its place: the VM no longer runs", v.Pod))}
		}
		subjects = append(subjects, s)
	}
	for _, v := range after.Items {
		if !taken[v.UID] {
			subjects = append(subjects, Subject{Kind: SubjectVM, Name: v.Name, Facts: []Fact{
				changed("pod", PodAppeared, none, v.identity(), "pod %s was not there before: somebody started another VM", v.Pod),
			}})
		}
	}
	return sorted(subjects)
}

const none = "none"

func (v VM) identity() string { return v.Pod + ", UID " + v.UID }

func compareVM(before, after VM) []Fact {
	facts := []Fact{same("pod", before.identity())}
	if f := settle("pod start", before.StartTime, after.StartTime); f != nil {
		facts = append(facts, *f)
	} else if was, is := *before.StartTime.Value, *after.StartTime.Value; was.Equal(is) {
		facts = append(facts, same("pod start", spell(was)))
	} else {
		facts = append(facts, changed("pod start", PodStartMoved, spell(was), spell(is), "the management cluster's kubelet started pod %s anew", after.Pod))
	}
	facts = append(facts, compareDeletion(before, after))
	for _, c := range before.Containers {
		i := slices.IndexFunc(after.Containers, func(now Container) bool { return now.Name == c.Name })
		now := unread[Run]("the pod no longer has this container")
		if i >= 0 {
			now = after.Containers[i].Run
		}
		facts = append(facts, compareRun(c.Name, isHelper(before, c.Name), c.Run, now))
	}
	return facts
}

func compareDeletion(before, after VM) Fact {
	was, is := spellOr(before.DeletionTimestamp), spellOr(after.DeletionTimestamp)
	if was == is {
		return same("deletion", was)
	}
	return changed("deletion", PodGoing, was, is, "pod %s is being deleted: the VM stops", after.Pod)
}

// isHelper tells whether a container only helps the one the VM runs in. Where none has the legacy name, any may be the VM.
func isHelper(v VM, container string) bool {
	return container != containerVM && slices.ContainsFunc(v.Containers, func(c Container) bool { return c.Name == containerVM })
}

func compareRun(container string, helper bool, before, after Item[Run]) Fact {
	name := "container " + container
	if f := settle(name, before, after); f != nil {
		return *f
	}
	was, is := before.Value, after.Value
	stopped := is.State != stateRunning
	switch {
	case was.String() == is.String():
		return same(name, was.String())
	case helper && stopped:
		return changed(name, HelperStopped, was.String(), is.String(), "%s is %s: it helps the VM, which is another container", name, is.State)
	case helper:
		return changed(name, HelperRestarted, was.String(), is.String(), "%s restarted: it helps the VM, which is another container", name)
	case stopped:
		return changed(name, VMStopped, was.String(), is.String(), "%s is %s: the VM stands still, and starts anew with empty disks", name, is.State)
	default:
		return changed(name, VMRestarted, was.String(), is.String(), "%s restarted: the VM was started anew with empty disks", name)
	}
}

func (r Run) String() string {
	return fmt.Sprintf("%s, %s, %s since %s", cmp.Or(r.ID, "no id"), plural(r.Restarts, "restart"), r.State, spellOr(r.StartedAt))
}

func plural(n int32, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return strconv.Itoa(int(n)) + " " + word + "s"
}

func compareNodes(before, after *Evidence) []Subject {
	if why := readable("Node", before.Nodes.Unread, after.Nodes.Unread, len(before.Nodes.Items)); why != "" {
		return []Subject{{Kind: SubjectNode, Facts: []Fact{unknown("Nodes", "%s", why)}}}
	}
	known := map[string]bool{}
	var subjects []Subject
	for _, n := range before.Nodes.Items {
		known[n.Name] = true
		s := Subject{Kind: SubjectNode, Name: n.Name}
		if i := slices.IndexFunc(after.Nodes.Items, func(now Node) bool { return now.Name == n.Name }); i >= 0 {
			s.Facts = after.Course.whole(n.Name, compareNode(n, after.Nodes.Items[i], before.Metadata.CollectedAt))
		} else {
			s.Facts = []Fact{after.Course.gone(n.Name, changed("Node", NodeGone, "UID "+n.UID, none, "Node %s is gone: it was deleted", n.Name))}
		}
		subjects = append(subjects, s)
	}
	for _, n := range after.Nodes.Items {
		if !known[n.Name] {
			subjects = append(subjects, Subject{Kind: SubjectNode, Name: n.Name, Facts: []Fact{
				after.Course.joined(after.Cluster, n, changed("Node", NodeAppeared, none, "UID "+n.UID, "Node %s was not there before: another machine joined", n.Name)),
			}})
		}
	}
	return sorted(subjects)
}

func compareNode(before, after Node, firstLook time.Time) []Fact {
	var facts []Fact
	if before.UID == after.UID {
		facts = append(facts, same("Node", "UID "+before.UID))
	} else {
		facts = append(facts, changed("Node", NodeRecreated, "UID "+before.UID, "UID "+after.UID,
			"Node %s was deleted and registered anew: pods that ran on it may have been removed", before.Name))
	}
	if f := settle("boot id", before.BootID, after.BootID); f != nil {
		facts = append(facts, *f)
	} else if was, is := *before.BootID.Value, *after.BootID.Value; was == is {
		facts = append(facts, same("boot id", was))
	} else {
		facts = append(facts, changed("boot id", GuestRebooted, was, is, "the operating system of %s was booted anew", before.Name))
	}
	facts = append(facts,
		compareStart("kubelet start", before.KubeletStart, after.KubeletStart, firstLook, KubeletRestarted, "the kubelet of "+before.Name+" was restarted"),
		compareAddresses(before, after),
		compareProviderID(before, after),
	)
	facts = append(facts, compareMarks(PartLabel, LabelChanged, before.Labels, after.Labels)...)
	return append(facts, compareMarks(PartAnnotation, AnnotationChanged, before.Annotations, after.Annotations)...)
}

func compareAddresses(before, after Node) Fact {
	was, is := cmp.Or(strings.Join(before.Addresses, ", "), none), cmp.Or(strings.Join(after.Addresses, ", "), none)
	if was == is {
		return same("addresses", was)
	}
	return changed("addresses", AddressesChanged, was, is, "%s reports other addresses: its network was set up anew", before.Name)
}

func compareProviderID(before, after Node) Fact {
	was, is := cmp.Or(before.ProviderID, none), cmp.Or(after.ProviderID, none)
	if was == is {
		return same("providerID", was)
	}
	if rule := allowance(PartProviderID, "", before.ProviderID == ""); rule != nil {
		return Fact{Name: "providerID", Result: Expected, Before: was, After: is, Meaning: "set by " + rule.By}
	}
	return changed("providerID", ProviderIDChanged, was, is, "the providerID of %s changed, which the API server lets happen only to a new Node", before.Name)
}

// compareMarks compares labels or annotations: one fact for all that are the same, one for each that is not.
func compareMarks(part Part, change Change, before, after map[string]string) []Fact {
	var facts []Fact
	unchanged := 0
	for _, key := range slices.Sorted(maps.Keys(union(before, after))) {
		was, had := before[key]
		is, has := after[key]
		if had == has && was == is {
			unchanged++
			continue
		}
		name := string(part) + " " + key
		f := Fact{Name: name, Before: none, After: none}
		if had {
			f.Before = strconv.Quote(was)
		}
		if has {
			f.After = strconv.Quote(is)
		}
		if rule := allowance(part, key, !had); rule != nil {
			f.Result, f.Meaning = Expected, "written by "+rule.By
		} else {
			f = changed(name, change, f.Before, f.After, "%s was %s, which adopting does not do: somebody else writes to this Node", name, verb(had, has))
		}
		facts = append(facts, f)
	}
	return append([]Fact{same(string(part)+"s", strconv.Itoa(unchanged)+" unchanged")}, facts...)
}

func verb(had, has bool) string {
	switch {
	case !had:
		return "added"
	case !has:
		return "removed"
	}
	return "altered"
}

func union(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, b)
	return out
}

func compareEtcd(before, after *Evidence) []Subject {
	whole := Subject{Kind: SubjectEtcd}
	if len(after.Course.Retired) > 0 && after.Etcd.Unread != "" {
		whole.Facts = []Fact{expected(Fact{Name: "members", Before: strconv.Itoa(len(before.Etcd.Members)), After: none}, "the legacy members have left, as planned; the new ones are not asked")}
		return []Subject{whole}
	}
	if why := readable("etcd member", before.Etcd.Unread, after.Etcd.Unread, len(before.Etcd.Members)); why != "" {
		whole.Facts = []Fact{unknown("members", "%s", why)}
		return []Subject{whole}
	}
	was, is := before.Etcd, after.Etcd
	if was.Cluster == is.Cluster {
		whole.Facts = append(whole.Facts, same("cluster id", was.Cluster))
	} else {
		whole.Facts = append(whole.Facts, changed("cluster id", ClusterReplaced, was.Cluster, is.Cluster,
			"another etcd cluster answers: it was founded anew or restored, and the data may be others"))
	}
	members := compareMembers(before, after)
	same := ranOn(members)
	whole.Facts = append(whole.Facts,
		after.Course.term(was.Term, is.Term, compareAgreed("raft term", was.Term, is.Term, TermChanged, "the members held an election: the leader was restarted, or lost touch"), same),
		after.Course.leader(compareAgreed("leader", was.Leader, is.Leader, LeaderMoved, "another member leads: the former leader was restarted, lost touch, or was told to hand over"), same),
	)
	return append([]Subject{whole}, members...)
}

func compareAgreed(name string, before, after Item[string], change Change, meaning string) Fact {
	if f := settle(name, before, after); f != nil {
		return *f
	}
	if *before.Value == *after.Value {
		return same(name, *before.Value)
	}
	return changed(name, change, *before.Value, *after.Value, "%s", meaning)
}

func compareMembers(before, after *Evidence) []Subject {
	find := func(members []Member, match func(Member) bool) *Member {
		if i := slices.IndexFunc(members, match); i >= 0 {
			return &members[i]
		}
		return nil
	}
	was, is := before.Etcd.Members, after.Etcd.Members
	taken := map[string]bool{}
	var subjects []Subject
	for _, m := range was {
		s := Subject{Kind: SubjectMember, Name: m.called()}
		now := find(is, func(n Member) bool { return n.ID == m.ID })
		successor := find(is, func(n Member) bool {
			return n.Name == m.Name && !taken[n.ID] && find(was, func(o Member) bool { return o.ID == n.ID }) == nil
		})
		switch {
		case now != nil:
			s.Facts = compareMember(m, *now, before.Metadata.CollectedAt)
		case successor != nil:
			taken[successor.ID] = true
			s.Facts = []Fact{changed("member", MemberReplaced, m.identity(), successor.identity(),
				"member %s was removed and added anew: it copied its data from the others", m.called())}
		default:
			s.Facts = []Fact{changed("member", MemberGone, m.identity(), none, "member %s was removed from the cluster", m.called())}
		}
		subjects = append(subjects, s)
	}
	for _, m := range is {
		if !taken[m.ID] && find(was, func(o Member) bool { return o.ID == m.ID }) == nil {
			subjects = append(subjects, Subject{Kind: SubjectMember, Name: m.called(), Facts: []Fact{
				after.Course.member(after, m, changed("member", MemberAppeared, none, m.identity(), "member %s was not there before: somebody added it", m.called())),
			}})
		}
	}
	return sorted(subjects)
}

// processStart is the fact that tells whether a process runs that ran before.
const processStart = "process start"

func compareMember(before, after Member, firstLook time.Time) []Fact {
	var facts []Fact
	if before.identity() == after.identity() {
		facts = append(facts, same("member", before.identity()))
	} else {
		facts = append(facts, changed("member", MemberChanged, before.identity(), after.identity(),
			"member %s has another name or vote than before", before.called()))
	}
	return append(facts,
		compareStart(processStart, before.Started, after.Started, firstLook, EtcdRestarted, "etcd member "+before.called()+" was restarted"),
		compareAgreed("version", before.Version, after.Version, VersionChanged, "another version of etcd runs: the member was restarted with another program"),
	)
}

// called is how people know the member; one that never started has no name.
func (m Member) called() string { return cmp.Or(m.Name, m.ID) }

func (m Member) identity() string {
	vote := "voter"
	if m.Learner {
		vote = "learner"
	}
	return fmt.Sprintf("id %s, name %s, %s", m.ID, cmp.Or(m.Name, none), vote)
}

// compareStart compares the start of one process.
func compareStart(name string, before, after Item[time.Time], firstLook time.Time, change Change, meaning string) Fact {
	if f := settle(name, before, after); f != nil {
		return *f
	}
	was, is := *before.Value, *after.Value
	switch {
	case is.Sub(was).Abs() <= startTolerance:
		return Fact{Name: name, Result: Same, Before: spell(was), After: spell(is)}
	case is.Before(firstLook.Add(-clockSlack)):
		f := unknown(name, "the start moved by %s and still lies before the first look: the machine's clock was set, or is wrong, so this proves nothing",
			is.Sub(was).Round(time.Second))
		f.Before, f.After = spell(was), spell(is)
		return f
	default:
		return changed(name, change, spell(was), spell(is), "%s at %s", meaning, spell(is))
	}
}

// settle returns the fact for values of which one is missing, or nil when both are there to compare.
func settle[T any](name string, before, after Item[T]) *Fact {
	var f Fact
	switch {
	case before.Value == nil:
		f = unknown(name, "before: %s", cmp.Or(before.Unread, "not recorded"))
	case after.Value == nil:
		f = unknown(name, "after: %s", cmp.Or(after.Unread, "not recorded"))
	default:
		return nil
	}
	return &f
}

// sorted puts subjects in the order of their names.
func sorted(subjects []Subject) []Subject {
	slices.SortStableFunc(subjects, func(a, b Subject) int { return cmp.Compare(a.Name, b.Name) })
	return subjects
}

// spell writes a time as exactly as it is known.
func spell(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.99 UTC") }

func spellOr(t *time.Time) string {
	if t == nil {
		return none
	}
	return spell(*t)
}
