package report

import (
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

// What all renderings of a proof share.

func proofMark(o proof.Outcome) mark {
	switch o {
	case proof.Untouched:
		return mark{"✓", "v", string(o), good}
	case proof.Touched:
		return mark{"×", "x", string(o), bad}
	case proof.Incomplete:
		return mark{"?", "?", string(o), caution}
	}
	return mark{"?", "?", string(o), plain}
}

func resultMark(r proof.Result) mark {
	switch r {
	case proof.Same:
		return mark{"✓", "v", string(r), good}
	case proof.Expected:
		return mark{"~", "~", string(r), good}
	case proof.Unknown:
		return mark{"?", "?", string(r), caution}
	case proof.Changed:
		return mark{"×", "x", string(r), bad}
	}
	return mark{"?", "?", string(r), plain}
}

// proofCounts are in the order of importance: what is wrong must not stand at the end of a line.
func proofCounts(s proof.Summary) []count {
	return []count{
		{s.Changed, resultMark(proof.Changed), "must not have"},
		{s.Unknown, resultMark(proof.Unknown), "proves nothing"},
		{s.Same, resultMark(proof.Same), "before and after"},
		{s.Expected, resultMark(proof.Expected), "changes that adopting makes"},
	}
}

// proofMeaning says what the outcome means for the migration.
func proofMeaning(p *proof.Proof) string {
	switch p.Outcome {
	case proof.Untouched:
		return "no VM, kubelet or etcd member was restarted or replaced"
	case proof.Touched:
		return "something was restarted, replaced or altered that must not have been"
	case proof.Incomplete:
		return "nothing is known to have changed, but not everything could be read"
	}
	return ""
}

func nextAfterProof(p *proof.Proof) string {
	switch p.Outcome {
	case proof.Untouched:
		return "keep this document with the records of the migration"
	case proof.Touched:
		return "do not go on; find out who did it, beginning with the events and logs of that time"
	case proof.Incomplete:
		return "make readable what could not be read, then look again; until then nothing is proved"
	}
	return "look again"
}

// needsLook tells whether a human has to look at the fact.
func needsLook(r proof.Result) bool { return r == proof.Changed || r == proof.Unknown }

// kindOfSubjects are all subjects of one kind.
type kindOfSubjects struct {
	Kind     proof.SubjectKind
	Title    string
	Subjects []proof.Subject
}

// subjectKinds groups subjects by kind, in the order of the document.
func subjectKinds(p *proof.Proof) []kindOfSubjects {
	var out []kindOfSubjects
	for _, s := range p.Subjects {
		i := slices.IndexFunc(out, func(k kindOfSubjects) bool { return k.Kind == s.Kind })
		if i < 0 {
			out = append(out, kindOfSubjects{Kind: s.Kind, Title: subjectTitle(s.Kind)})
			i = len(out) - 1
		}
		out[i].Subjects = append(out[i].Subjects, s)
	}
	return out
}

func subjectTitle(k proof.SubjectKind) string {
	switch k {
	case proof.SubjectEvidence:
		return "Evidence"
	case proof.SubjectVM:
		return "Virtual machines"
	case proof.SubjectNode:
		return "Nodes"
	case proof.SubjectEtcd:
		return "etcd"
	case proof.SubjectMember:
		return "etcd members"
	}
	return string(k)
}

// subjectName is the subject's name, or what it stands for when it has none.
func subjectName(s proof.Subject) string {
	if s.Name != "" {
		return s.Name
	}
	switch s.Kind {
	case proof.SubjectEvidence:
		return "the two looks"
	case proof.SubjectVM:
		return "every VM"
	case proof.SubjectNode:
		return "every Node"
	case proof.SubjectEtcd:
		return "the cluster"
	case proof.SubjectMember:
		return "every member"
	}
	return string(s.Kind)
}

// factText is the fact's name with what is to say about it, unless that begins with the name anyway.
func factText(f proof.Fact) string {
	if strings.HasPrefix(f.Meaning, f.Name+" ") {
		return f.Meaning
	}
	return joinNonEmpty(": ", f.Name, f.Meaning)
}

func factCounts(facts []proof.Fact) proof.Summary {
	var s proof.Summary
	for _, f := range facts {
		switch f.Result {
		case proof.Same:
			s.Same++
		case proof.Expected:
			s.Expected++
		case proof.Unknown:
			s.Unknown++
		case proof.Changed:
			s.Changed++
		}
	}
	return s
}

func allFacts(subjects []proof.Subject) []proof.Fact {
	var all []proof.Fact
	for _, s := range subjects {
		all = append(all, s.Facts...)
	}
	return all
}

// resultSum is "7 same, 2 expected".
func resultSum(s proof.Summary, separator string) string { return sumUp(proofCounts(s), separator) }

// allowanceText spells a rule: what may change, and how far.
func allowanceText(a proof.Allowance) (what, extent string) {
	what = string(a.Part)
	if a.Key != "" {
		what += " " + a.Key
	}
	switch a.Extent {
	case proof.Any:
		extent = "added, altered or removed"
	case proof.AddOnly:
		extent = "added where there was none"
	default:
		extent = string(a.Extent)
	}
	return what, extent
}

// nameProof lists the subjects as kind/name; with Short only those a human has to look at.
func nameProof(w io.Writer, doc *proof.Proof, o Options) error {
	var names []string
	for _, s := range doc.Subjects {
		if !o.Short || needsLook(s.Result) {
			kind := strings.ReplaceAll(string(s.Kind), " ", "-")
			names = append(names, joinNonEmpty("/", kind, s.Name))
		}
	}
	return writeNames(w, names, o)
}

// changeStory says to a customer what a change means: no names, no inner workings.
func changeStory(c proof.Change) string { //nolint:gocyclo // A list: one line per change, and the compiler asks for a new one.
	switch c {
	case proof.PodReplaced, proof.VMRestarted:
		return "A machine was started anew, and what was only on its own disks is gone."
	case proof.PodGone, proof.VMStopped:
		return "A machine no longer runs."
	case proof.PodAppeared, proof.NodeAppeared:
		return "A machine was added that was not there before."
	case proof.PodGoing:
		return "A machine is being stopped."
	case proof.PodStartMoved:
		return "The place in which a machine runs was set up anew."
	case proof.HelperRestarted:
		return "A helper beside a machine was restarted."
	case proof.HelperStopped:
		return "A helper beside a machine no longer runs."
	case proof.NodeRecreated:
		return "A machine was registered anew; workloads on it may have been started again."
	case proof.NodeGone:
		return "A machine left the cluster."
	case proof.GuestRebooted:
		return "The operating system of a machine was booted anew."
	case proof.KubeletRestarted:
		return "The service that manages workloads on a machine was restarted."
	case proof.AddressesChanged:
		return "A machine has another network address."
	case proof.ProviderIDChanged, proof.LabelChanged, proof.AnnotationChanged:
		return "The description of a machine was altered in a way the migration does not."
	case proof.ClusterReplaced:
		return "The database of the cluster is not the one from before."
	case proof.TermChanged:
		return "The database of the cluster chose its leader anew."
	case proof.LeaderMoved:
		return "Another part of the cluster's database leads now."
	case proof.MemberReplaced, proof.MemberGone, proof.MemberAppeared, proof.MemberChanged:
		return "The database of the cluster has other members than before."
	case proof.EtcdRestarted:
		return "The database of the cluster was restarted."
	case proof.VersionChanged:
		return "The database of the cluster runs in another version."
	}
	return "Something changed."
}

// tellProof tells a proof to a customer. Nothing of it but the cluster's id and the program's name comes from the document.
func tellProof(original *proof.Proof, o Options) *story {
	p := visible(original, o)
	s := &story{
		Kind: "Proof", Title: "Was your cluster left running?", Subject: p.Cluster, Verdict: proofMark(p.Outcome),
		Facts: []fact{
			{"First look", stamp(p.Metadata.Before, o.DateLocation)},
			{"Second look", stamp(p.Metadata.After, o.DateLocation)},
			{"Made by", p.Metadata.Tool},
		},
	}
	switch p.Outcome {
	case proof.Untouched:
		s.Verdict.Word = "yes, nothing was restarted"
	case proof.Touched:
		s.Verdict.Word, s.Note = "no", "Something was restarted, replaced or altered that should not have been."
	case proof.Incomplete:
		s.Verdict.Word, s.Note = "not proved yet", "Nothing is known to have changed, but not everything could be looked at."
	}
	vms := 0
	for _, subject := range p.Subjects {
		if subject.Kind == proof.SubjectVM && subject.Name != "" {
			vms++
		}
	}
	s.Lead = []string{
		"Before and after the change we recorded, for " + plural(vms, "machine") + " and the cluster's database, what only a restart or a replacement changes.",
	}
	if p.Outcome == proof.Untouched {
		s.Lead = append(s.Lead, "It is the same: machines, workloads and data were left running.")
	}
	n := len(allFacts(p.Subjects))
	if n > 0 {
		s.Checks = capital(plural(n, "fact")) + map[bool]string{true: " was", false: " were"}[n == 1] + " compared: " + resultSum(p.Summary, ", ") + "."
	}
	s.Attention = proofAttention(p)
	return s
}

// proofAttention lists every kind of change once, with how often it was seen.
func proofAttention(p *proof.Proof) []storyCheck {
	var out []storyCheck
	times := map[string]int{}
	for _, f := range allFacts(p.Subjects) {
		if !needsLook(f.Result) {
			continue
		}
		c := storyCheck{ID: string(f.Change), Title: changeStory(f.Change), Mark: resultMark(f.Result)}
		if f.Result == proof.Unknown {
			c.ID, c.Title = "unread", "Something could not be looked at both times, or does not tell."
		}
		if times[c.ID] == 0 {
			out = append(out, c)
		}
		times[c.ID]++
	}
	for i, c := range out {
		if n := times[c.ID]; n > 1 {
			out[i].Title = strings.TrimSuffix(c.Title, ".") + ", " + strconv.Itoa(n) + " times."
		}
	}
	return out
}
