package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
)

type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Name     string       `xml:"name,attr"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Errors   int          `xml:"errors,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name      string      `xml:"name,attr"`
	Tests     int         `xml:"tests,attr"`
	Failures  int         `xml:"failures,attr"`
	Errors    int         `xml:"errors,attr"`
	Skipped   int         `xml:"skipped,attr"`
	Timestamp string      `xml:"timestamp,attr,omitempty"`
	Cases     []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name      string        `xml:"name,attr"`
	ClassName string        `xml:"classname,attr"`
	Time      string        `xml:"time,attr,omitempty"`
	Failure   *junitProblem `xml:"failure"`
	Error     *junitProblem `xml:"error"`
	Skipped   *junitProblem `xml:"skipped"`
	SystemOut string        `xml:"system-out,omitempty"`
}

type junitProblem struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// junitTime is how JUnit writes times: in UTC, without saying so.
const junitTime = "2006-01-02T15:04:05"

// add counts a case by what became of it.
func (s *junitSuite) add(c junitCase) {
	s.Tests++
	switch {
	case c.Failure != nil:
		s.Failures++
	case c.Error != nil:
		s.Errors++
	case c.Skipped != nil:
		s.Skipped++
	}
	s.Cases = append(s.Cases, c)
}

func (s *junitSuites) add(suite junitSuite) {
	s.Tests += suite.Tests
	s.Failures += suite.Failures
	s.Errors += suite.Errors
	s.Skipped += suite.Skipped
	s.Suites = append(s.Suites, suite)
}

func (s *junitSuites) write(w io.Writer) error {
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(s); err != nil {
		return fmt.Errorf("encoding XML: %w", err)
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// junitChecks writes one suite per category. What blocks or waits for a decision fails, unless it is accepted; what could not
// be looked at is an error; a warning passes with a remark.
func junitChecks(w io.Writer, doc *check.Report, _ Options) error {
	doc = clean(doc, func(s string) string { return neutralise(s, false) })
	all := junitSuites{Name: "preflight " + doc.Cluster}
	for _, category := range categories(doc.Results) {
		suite := junitSuite{Name: category.Name}
		if !doc.Metadata.CreatedAt.IsZero() {
			suite.Timestamp = doc.Metadata.CreatedAt.UTC().Format(junitTime)
		}
		for _, r := range category.Results {
			c := junitCase{Name: r.ID + " " + r.Title, ClassName: doc.Cluster + "." + category.Name}
			problem := &junitProblem{Message: r.Detail, Type: r.ID, Text: junitText(r)}
			switch r.Outcome {
			case check.Pass:
			case check.Warn:
				c.SystemOut = "warning: " + r.Detail + "\n" + junitText(r)
			case check.Block, check.Decide:
				if r.Accepted != nil {
					c.SystemOut = string(r.Outcome) + ", accepted: " + r.Accepted.Reason + "\n" + junitText(r)
					break
				}
				c.Failure = problem
			case check.Skip:
				c.Skipped = &junitProblem{Message: r.Detail}
			case check.Error:
				c.Error = problem
			default:
				return fmt.Errorf("check %s has the unknown outcome %q", r.ID, r.Outcome)
			}
			suite.add(c)
		}
		all.add(suite)
	}
	return all.write(w)
}

func junitText(r check.Result) string {
	lines := append([]string{r.Detail}, r.Items...)
	if r.Hint != "" {
		lines = append(lines, "what to do: "+r.Hint)
	}
	return strings.Join(lines, "\n")
}
