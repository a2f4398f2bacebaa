package plan

import (
	"cmp"
	"slices"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// Compare lists what differs between an earlier plan and this one. Differences in what a plan used make the earlier one stale;
// all others (resource versions, fields that are dropped) are listed and tolerated.
func Compare(earlier, now *Plan) []Drift {
	drift := []Drift{}
	before, after := map[string]Observed{}, map[string]Observed{}
	for _, o := range earlier.Basis.Observed {
		before[o.Ref] = o
	}
	for _, o := range now.Basis.Observed {
		after[o.Ref] = o
	}
	add := func(what, subject, old, current string, used bool) {
		if old != current {
			drift = append(drift, Drift{What: what, Subject: subject, Before: old, After: current, Used: used})
		}
	}
	for ref, o := range before {
		current, found := after[ref]
		switch {
		case !found:
			add("observed", ref, "present", "gone", true)
		case o.UID != current.UID:
			add("observed", ref+" uid", o.UID, current.UID, true)
		case o.Digest == current.Digest:
			add("observed", ref+" resourceVersion", o.ResourceVersion, current.ResourceVersion, false)
		}
	}
	for ref := range after {
		if _, found := before[ref]; !found {
			add("observed", ref, "absent", "present", true)
		}
	}
	driftOfFields(earlier, now, add)
	driftOfChanges(earlier, now, add)
	driftOfFindings(earlier, now, add)
	slices.SortFunc(drift, func(x, y Drift) int {
		return cmp.Or(cmp.Compare(x.What, y.What), cmp.Compare(x.Subject, y.Subject))
	})
	return drift
}

func driftOfFields(earlier, now *Plan, add func(what, subject, old, current string, used bool)) {
	key := func(f Field) string { return f.Source + " " + f.Path }
	before := map[string]Field{}
	for _, f := range earlier.Fields {
		before[key(f)] = f
	}
	seen := map[string]bool{}
	for _, f := range now.Fields {
		seen[key(f)] = true
		old, found := before[key(f)]
		used := f.Disposition != Dropped || found && old.Disposition != Dropped
		if !found {
			add("field", key(f), "absent", f.Value, used)
			continue
		}
		add("field", key(f), old.Value, f.Value, used)
	}
	for _, f := range earlier.Fields {
		if !seen[key(f)] {
			add("field", key(f), f.Value, "absent", f.Disposition != Dropped)
		}
	}
}

func driftOfChanges(earlier, now *Plan, add func(what, subject, old, current string, used bool)) {
	before := map[string]Object{}
	for _, c := range earlier.Changes {
		before[c.Phase+" "+c.Object] = c
	}
	for _, c := range now.Changes {
		old, found := before[c.Phase+" "+c.Object]
		delete(before, c.Phase+" "+c.Object)
		if !found {
			add("change", c.Object, "absent", string(c.Action), true)
			continue
		}
		add("change", c.Object, string(old.Action), string(c.Action), true)
		driftOfValues(c.Object, old.Fields, c.Fields, add)
	}
	for _, c := range before {
		add("change", c.Object, string(c.Action), "absent", true)
	}
}

// driftOfValues compares what an object would be set to.
func driftOfValues(object string, earlier, now []FieldChange, add func(what, subject, old, current string, used bool)) {
	values := map[string]string{}
	for _, f := range earlier {
		values[f.Path] = translate.Text(f.After)
	}
	for _, f := range now {
		old, known := values[f.Path]
		if !known {
			old = "absent"
		}
		delete(values, f.Path)
		add("change", object+" "+f.Path, old, translate.Text(f.After), true)
	}
	for path, old := range values {
		add("change", object+" "+path, old, "absent", true)
	}
}

// driftOfFindings lists what has come up or gone away; a decision that was taken since counts as gone.
func driftOfFindings(earlier, now *Plan, add func(what, subject, old, current string, used bool)) {
	name := func(f finding.Finding) string { return f.ID + " " + f.Object + " " + f.Path }
	before := map[string]string{}
	for _, f := range earlier.Findings {
		before[name(f)] = state(f)
	}
	for _, f := range now.Findings {
		old, known := before[name(f)]
		if !known {
			old = "absent"
		}
		delete(before, name(f))
		add("finding", name(f), old, state(f), f.Severity != finding.Info)
	}
	for subject, old := range before {
		add("finding", subject, old, "absent", old != string(finding.Info))
	}
}

func state(f finding.Finding) string {
	if f.Answer != nil {
		return "decided: " + f.Answer.Value
	}
	return string(f.Severity)
}

// Stale tells whether the earlier plan must not be applied any more.
func Stale(drift []Drift) bool {
	return slices.ContainsFunc(drift, func(d Drift) bool { return d.Used })
}
