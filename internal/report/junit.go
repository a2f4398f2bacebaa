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

// junitChecks writes one suite per category. What blocks or waits for a decision fails, unless it is accepted; what could not
// be looked at is an error; a warning passes with a remark.
func junitChecks(w io.Writer, doc *check.Report, _ Options) error {
	doc = clean(doc, func(s string) string { return neutralise(s, false) })
	all := junitSuites{Name: "preflight " + doc.Cluster}
	for _, category := range categories(doc.Results) {
		suite := junitSuite{Name: category.Name}
		if !doc.Metadata.CreatedAt.IsZero() {
			suite.Timestamp = doc.Metadata.CreatedAt.UTC().Format("2006-01-02T15:04:05")
		}
		for _, r := range category.Results {
			c := junitCase{Name: r.ID + " " + r.Title, ClassName: doc.Cluster + "." + category.Name}
			problem := &junitProblem{Message: r.Detail, Type: r.ID, Text: junitText(r)}
			suite.Tests++
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
				suite.Failures++
			case check.Skip:
				c.Skipped = &junitProblem{Message: r.Detail}
				suite.Skipped++
			case check.Error:
				c.Error = problem
				suite.Errors++
			default:
				return fmt.Errorf("check %s has the unknown outcome %q", r.ID, r.Outcome)
			}
			suite.Cases = append(suite.Cases, c)
		}
		all.Tests += suite.Tests
		all.Failures += suite.Failures
		all.Errors += suite.Errors
		all.Skipped += suite.Skipped
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

func junitText(r check.Result) string {
	lines := append([]string{r.Detail}, r.Items...)
	if r.Hint != "" {
		lines = append(lines, "what to do: "+r.Hint)
	}
	return strings.Join(lines, "\n")
}
