package launcher

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const (
	// maxBeatBytes bounds a line of the agent. The guest is not trusted.
	maxBeatBytes = 64 << 10
	// maxMessageBytes is what the kubelet keeps of a termination message.
	maxMessageBytes = 4 << 10
	// maxProblems bounds what a guest can complain about.
	maxProblems = 20
)

// reporter writes reports for the controller.
type reporter struct {
	out   io.Writer
	clock clock.PassiveClock
	last  *contract.Guest
}

// say writes a report as one line. A log that cannot be written to is the end of the container anyway.
func (r *reporter) say(report contract.Report) error {
	report.Time = r.clock.Now().UTC()
	line, err := fit(report)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(r.out, line+"\n"); err != nil {
		return fmt.Errorf("writing a report: %w", err)
	}
	return nil
}

// guest reports how the guest is, if that changed.
func (r *reporter) guest(g contract.Guest) error {
	if r.last != nil && reflect.DeepEqual(*r.last, g) {
		return nil
	}
	r.last = &g
	return r.say(contract.Report{Kind: contract.ReportGuest, Guest: &g})
}

// fit shortens what a report can do without until it keeps to its size: first the beginning of the guest's log, then its complaints.
func fit(report contract.Report) (string, error) {
	report.Message = shorten(report.Message, maxMessageBytes)
	if report.Guest != nil {
		g := *report.Guest
		report.Guest = &g
	}
	for {
		line, err := report.Line()
		if err != nil {
			return "", err
		}
		g := report.Guest
		over := len(line) - contract.MaxReportBytes
		switch {
		case over <= 0 || g == nil:
			return line, nil
		case g.BootstrapLog != "":
			// A byte may take six in JSON: a sixth of the excess is never too much, and repeating it comes close.
			const widest = 6
			g.BootstrapLog = end(g.BootstrapLog, len(g.BootstrapLog)-max(over/widest, widest))
		case len(g.Problems) > 0:
			g.Problems = g.Problems[:len(g.Problems)-1]
		case len(g.NotMounted) > 0:
			g.NotMounted = g.NotMounted[:len(g.NotMounted)-1]
		default:
			g.BootstrapMessage, g.BootID = shorten(g.BootstrapMessage, maxMessageBytes/4), shorten(g.BootID, 64)
		}
	}
}

// end keeps the end of a text without cutting a character in two.
func end(text string, most int) string {
	if most <= 0 {
		return ""
	}
	text = text[max(0, len(text)-most):]
	for text != "" && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	return text
}

func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}

// parseBeat reads a line of the agent. A guest can write anything there; what makes no sense is no beat.
func parseBeat(line []byte) (*contract.Guest, bool) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || len(line) > maxBeatBytes {
		return nil, false
	}
	var beat contract.Beat
	if err := json.Unmarshal(line, &beat); err != nil || beat.Version != contract.BeatVersion {
		return nil, false
	}
	g := beat.Guest
	switch g.Bootstrap {
	case contract.BootstrapRunning, contract.BootstrapSucceeded, contract.BootstrapFailed:
	default:
		return nil, false
	}
	g.BootID = shorten(g.BootID, 64)
	g.BootstrapMessage = shorten(g.BootstrapMessage, maxMessageBytes/4)
	g.Problems, g.NotMounted = bounded(g.Problems), bounded(g.NotMounted)
	return &g, true
}

// bounded keeps of a guest's complaints what fits.
func bounded(complaints []string) []string {
	complaints = complaints[:min(len(complaints), maxProblems)]
	for i := range complaints {
		complaints[i] = shorten(complaints[i], maxMessageBytes/4)
	}
	return complaints
}
