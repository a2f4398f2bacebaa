package report

import (
	"encoding/xml"
	"fmt"
	"io"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

// junitProof writes one suite per kind of subject and one case per fact. What changed fails, what is unknown is an error, an
// expected change passes with a remark.
func junitProof(w io.Writer, doc *proof.Proof, _ Options) error {
	doc = clean(doc, func(s string) string { return neutralise(s, false) })
	all := junitSuites{Name: "untouched proof " + doc.Cluster}
	for _, kind := range subjectKinds(doc) {
		suite := junitSuite{Name: kind.Title}
		if !doc.Metadata.After.IsZero() {
			suite.Timestamp = doc.Metadata.After.UTC().Format("2006-01-02T15:04:05")
		}
		for _, s := range kind.Subjects {
			for _, f := range s.Facts {
				c, err := junitFact(doc.Cluster, kind, s, f)
				if err != nil {
					return err
				}
				suite.add(c)
			}
		}
		all.Tests += suite.Tests
		all.Failures += suite.Failures
		all.Errors += suite.Errors
		all.Suites = append(all.Suites, suite)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(all); err != nil {
		return fmt.Errorf("encoding XML: %w", err)
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func (s *junitSuite) add(c junitCase) {
	s.Tests++
	if c.Failure != nil {
		s.Failures++
	}
	if c.Error != nil {
		s.Errors++
	}
	s.Cases = append(s.Cases, c)
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
