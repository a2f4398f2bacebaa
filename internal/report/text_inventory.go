package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
)

func wideInventory(w io.Writer, doc *check.Inventory, o Options) error {
	o.Full = true
	return textInventory(w, doc, o)
}

func textInventory(w io.Writer, doc *check.Inventory, o Options) error {
	doc = visible(doc, o)
	p := newPrinter(w, o)
	p.title(doc.Source+" "+p.dot()+" read-only", quiet, stamp(doc.Metadata.CreatedAt, o.DateLocation))
	if len(doc.Clusters) > 0 {
		p.blank()
		header, rows := inventoryTable(p, doc, o.Full)
		p.table(header, rows, !o.Full)
	}
	p.blank()
	counts := stateCounts(doc)
	text := plural(len(doc.Clusters), "cluster")
	if len(counts) > 0 {
		text += ": " + sumUp(counts, ", ")
	}
	p.text("", plain, text)
	if len(doc.Records) > 0 {
		p.text("", caution, "Only in the records, without a cluster: "+strings.Join(doc.Records, ", "))
	}
	p.findings("Findings", doc.Findings, o)
	if advice, command := nextAfterInventory(doc, o); command != "" {
		p.next(advice, command)
	}
	return p.flush()
}

func inventoryTable(p *printer, doc *check.Inventory, full bool) (header []string, rows [][]cell) {
	header = []string{"CLUSTER", "ORG", "KUBERNETES", "RELEASE", "MASTERS", "WORKERS", "STATE", "BLOCKERS"}
	if full {
		header = []string{
			"CLUSTER", "ORG", "NAME", "KUBERNETES", "RELEASE", "OPERATOR", "ETCD", "CALICO", "OS", "MASTERS", "WORKERS", "VMS",
			"CPU", "MEMORY", "DISK", "ETCD STORAGE", "HOST VOLUMES", "STATE", "BLOCKERS",
		}
	}
	for _, e := range doc.Clusters {
		m := stateMark(e.State)
		cells := map[string]cell{
			"CLUSTER": {Text: e.ID, Tone: strong}, "ORG": {Text: e.Organization}, "NAME": {Text: e.Name},
			"KUBERNETES": {Text: strings.TrimPrefix(e.Kubernetes, "v")}, "RELEASE": {Text: e.Release}, "OPERATOR": {Text: e.Operator},
			"ETCD": {Text: e.Etcd}, "CALICO": {Text: e.Calico}, "OS": {Text: e.OS},
			"MASTERS": number(e.Masters), "WORKERS": number(e.Workers), "VMS": number(e.VMs), "CPU": {Text: cores(e.CPU), Right: true},
			"MEMORY": {Text: gib(e.MemoryGiB), Right: true}, "DISK": {Text: gib(e.DiskGiB), Right: true},
			"ETCD STORAGE": {Text: e.EtcdStorage}, "HOST VOLUMES": number(e.HostVolumes),
			"STATE": {Text: p.symbol(m) + " " + m.Word, Tone: m.Tone}, "BLOCKERS": {Text: blockers(e)},
		}
		row := make([]cell, len(header))
		for i, h := range header {
			row[i] = cells[h]
			if row[i].Text == "" {
				row[i].Text = "-"
			}
			if row[i].Tone == "" {
				row[i].Tone = plain
			}
		}
		rows = append(rows, row)
	}
	return header, rows
}

func number(n int) cell { return cell{Text: strconv.Itoa(n), Right: true} }

func cores(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func gib(f float64) string {
	if f == 0 {
		return "-"
	}
	return strconv.FormatFloat(f, 'f', -1, 64) + " GiB"
}

func blockers(e check.Entry) string {
	if len(e.Blockers) == 0 {
		return "-"
	}
	texts := make([]string, len(e.Blockers))
	for i, b := range e.Blockers {
		texts[i] = b.Text
	}
	return fmt.Sprintf("%d: %s", len(texts), strings.Join(texts, ", "))
}

func stateCounts(doc *check.Inventory) []count {
	var counts []count
	for _, s := range allStates() {
		c := count{Mark: stateMark(s)}
		for _, e := range doc.Clusters {
			if e.State == s {
				c.N++
			}
		}
		c.Mark.Word = verbFor(c.N, c.Mark.Word)
		if c.N > 0 {
			counts = append(counts, c)
		}
	}
	return counts
}

// nextAfterInventory names the cluster that needs a look first.
func nextAfterInventory(doc *check.Inventory, o Options) (advice, command string) {
	for _, s := range []check.State{check.StateFailed, check.StateNeedsWork, check.StateUnknown, check.StateReady} {
		for _, e := range doc.Clusters {
			if e.State != s {
				continue
			}
			if s == check.StateReady {
				return "see what would happen", o.command("migrate plan "+e.ID, readFrom(doc.Source))
			}
			return "see the details", o.command("migrate check "+e.ID, readFrom(doc.Source))
		}
	}
	return "", ""
}
