package report

import (
	"fmt"
	"io"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

// junitProof writes one suite per kind of subject and one case per fact. What changed fails, what is unknown is an error, an
// expected change passes with a remark.
func junitProof(w io.Writer, doc *proof.Proof, _ Options) error {
	doc = clean(doc, func(s string) string { return neutralise(s, false) })
	all := junitSuites{Name: "untouched proof " + doc.Cluster}
	if err := all.addProof(doc); err != nil {
		return err
	}
	return all.write(w)
}

// addProof adds a suite for every kind of subject.
func (s *junitSuites) addProof(doc *proof.Proof) error {
	for _, kind := range subjectKinds(doc) {
		suite := junitSuite{Name: kind.Title}
		if !doc.Metadata.After.IsZero() {
			suite.Timestamp = doc.Metadata.After.UTC().Format(junitTime)
		}
		for _, subject := range kind.Subjects {
			for _, f := range subject.Facts {
				c, err := junitFact(doc.Cluster, kind, subject, f)
				if err != nil {
					return err
				}
				suite.add(c)
			}
		}
		s.add(suite)
	}
	return nil
}

func junitFact(cluster string, kind kindOfSubjects, s proof.Subject, f proof.Fact) (junitCase, error) {
	c := junitCase{Name: subjectName(s) + ": " + f.Name, ClassName: cluster + "." + kind.Title}
	sides := "before: " + f.Before + "\nafter: " + f.After
	switch f.Result {
	case proof.Same:
	case proof.Expected:
		c.SystemOut = "expected: " + f.Meaning + "\n" + sides
	case proof.Unknown:
		c.Error = &junitProblem{Message: f.Meaning, Type: string(f.Result), Text: f.Meaning}
	case proof.Changed:
		c.Failure = &junitProblem{Message: f.Meaning, Type: string(f.Change), Text: f.Meaning + "\n" + sides}
	default:
		return c, fmt.Errorf("fact %s of %s has the unknown result %q", f.Name, subjectName(s), f.Result)
	}
	return c, nil
}
