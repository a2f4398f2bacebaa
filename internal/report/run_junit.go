package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// junitRun writes one suite per phase and one case per step, then the facts of the proof. A step that could not be done fails; what was
// not begun, or not ended, is skipped.
func junitRun(w io.Writer, doc *history.RunReport, _ Options) error {
	doc = clean(doc, func(s string) string { return neutralise(s, false) })
	all := junitSuites{Name: joinNonEmpty(" ", runNoun(doc), doc.Run, "of", doc.Cluster)}
	for _, phase := range doc.Phases {
		suite := junitSuite{Name: phase.Name}
		if !doc.StartedAt.IsZero() {
			suite.Timestamp = doc.StartedAt.UTC().Format(junitTime)
		}
		for _, s := range phase.Steps {
			c, err := junitStep(doc, phase, s)
			if err != nil {
				return err
			}
			suite.add(c)
		}
		all.add(suite)
	}
	failedStep := slices.ContainsFunc(allSteps(doc.Phases), func(s history.Step) bool { return s.State == stepFailed })
	if doc.Outcome == runFailed && !failedStep {
		// A pipeline must not take a failed run for a good one because no single step is to blame.
		suite := junitSuite{Name: "outcome"}
		suite.add(junitCase{
			Name: "the run reaches its goal", ClassName: doc.Cluster + ".outcome",
			Failure: &junitProblem{Message: doc.Message, Type: doc.Outcome, Text: doc.Message},
		})
		all.add(suite)
	}
	if doc.Proof != nil {
		if err := all.addProof(doc.Proof); err != nil {
			return err
		}
	}
	return all.write(w)
}

func junitStep(r *history.RunReport, phase history.Phase, s history.Step) (junitCase, error) {
	c := junitCase{Name: joinNonEmpty(" ", s.ID, s.Title), ClassName: r.Cluster + "." + phase.Name, SystemOut: stepNotes(r, s)}
	if took, ok := stepTook(r, s); ok {
		c.Time = strconv.FormatFloat(took.Seconds(), 'f', -1, 64)
	}
	switch s.State {
	case stepDone:
		if r.Direction == runBack {
			c.Skipped = &junitProblem{Message: "not taken back"}
		}
	case stepUndone:
		if r.Direction != runBack {
			c.Skipped = &junitProblem{Message: "taken back in an earlier run, not done again"}
		}
	case stepFailed:
		c.Failure = &junitProblem{Message: s.Message, Type: s.ID, Text: s.Message}
	case stepRunning, stepUndoing:
		c.Skipped = &junitProblem{Message: joinNonEmpty(": ", "the run ended in this step", s.Message)}
	case stepSkipped:
		c.Skipped = &junitProblem{Message: s.Message}
	case stepWaiting:
		c.Skipped = &junitProblem{Message: "not begun"}
	default:
		return c, fmt.Errorf("step %s has the unknown state %q", cmp.Or(s.ID, s.Title), s.State)
	}
	return c, nil
}
