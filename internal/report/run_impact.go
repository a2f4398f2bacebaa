package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// impactHeading is the title of what users could notice.
const impactHeading = "What users could notice"

// impactLines are sentences without their full stop, a line each; none when nothing was measured.
func impactLines(i *history.Impact, audience Audience) []string {
	if i == nil {
		return nil
	}
	// A run that waited for a window or an approval has measured nothing meanwhile, and between two runs nobody does.
	lines := []string{"Measured while a run was at work, from " + exact(i.From) + " to " + exact(i.Until)}
	for _, a := range i.Answers {
		lines = append(lines, answersText(a, audience))
	}
	for _, n := range i.Namespaces {
		lines = append(lines, affectedText(n))
	}
	switch {
	case i.Unwatched != "" && audience == Customer:
		lines = append(lines, "Whether pods were moved or missing was not watched all the time")
	case i.Unwatched != "":
		lines = append(lines, "Pods were not watched all the time: "+i.Unwatched)
	case len(i.Namespaces) == 0:
		lines = append(lines, "No pod was moved, and none was missing")
	}
	return lines
}

// answersText tells of one question. What a server said when it failed is for engineers: it names addresses.
func answersText(a history.Answers, audience Audience) string {
	if a.Asked == 0 {
		return a.Name + ": not asked"
	}
	text := fmt.Sprintf("%s: asked %s, always answered", a.Name, times(a.Asked))
	if a.Failed > 0 {
		text = fmt.Sprintf("%s: asked %s, %d without an answer", a.Name, times(a.Asked), a.Failed)
		switch {
		case a.FirstFailure == nil || a.LastFailure == nil:
		case a.FirstFailure.Equal(*a.LastFailure):
			text += " at " + exact(*a.FirstFailure)
		default:
			text += " from " + exact(*a.FirstFailure) + " to " + exact(*a.LastFailure)
		}
		if a.Error != "" && audience != Customer {
			text += " (" + a.Error + ")"
		}
	}
	if gap := spokenGap(a.Gap); gap != "" {
		text += "; longest time from one answer to the next " + gap
	}
	return text
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// spokenGap keeps parts of a second, which is what it is about.
func spokenGap(text string) string {
	d, err := time.ParseDuration(text)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// affectedText tells of one namespace.
func affectedText(n history.Affected) string {
	var parts []string
	if n.Moved > 0 {
		parts = append(parts, plural(n.Moved, "pod")+" moved")
	}
	if n.Refused != "" {
		parts = append(parts, "evictions were refused for "+spokenDuration(n.Refused)+", by disruption budgets")
	}
	for _, w := range n.Workloads {
		text := w.Kind + " " + w.Name + " had fewer pods ready than wanted"
		switch {
		case !w.Already:
			text += " for " + w.Fewer
		case w.Fewer == "0s":
			text += " before"
		default:
			text += " before, and fewer than it had for " + w.Fewer
		}
		if w.None != "" {
			text += ", none for " + w.None
		}
		parts = append(parts, text)
	}
	return "Namespace " + n.Name + ": " + strings.Join(parts, "; ")
}
