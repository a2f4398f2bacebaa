package translate

import (
	"fmt"
	"io"
	"strings"
)

// sourceDoc introduces one kind of source on the page of the translation.
type sourceDoc struct{ source, about string }

// sourceDocs has a sentence for every source of the table, in the table's order.
func sourceDocs() []sourceDoc {
	return []sourceDoc{
		{sourceConfig, "What a human or the legacy API asked for, and what kvm-operator recorded in the status."},
		{sourceCluster, "What the customer sees and sets: name, owner, labels of workers."},
		{sourceCert + "/api", "The names under which the API server answers."},
		{sourceCert, "All other certificates that cert-operator was asked for."},
		{sourceFlannel, "The network between the legacy virtual machines."},
		{sourceRecord, "What cluster-service remembers. It is never the only source of a value."},
		{sourceRelease, "The versions the cluster was made of."},
		{sourceSecret + "/service-account", "The key that signs the customer's service account tokens."},
		{sourceSecret + "/worker", "The certificate of kubelets and kube-proxy on workers."},
		{sourceSecret, "All other certificates, the encryption key and the kubeconfig."},
		{sourceDeployment, "What a virtual machine was started with. One Deployment per node."},
		{sourcePod, "The running virtual machine itself."},
		{sourceIgnition + "/master", "What masters were booted with: files, units and flags, decoded."},
		{sourceIgnition + "/worker", "What workers were booted with."},
		{sourceIgnition, "What masters and workers were booted with alike."},
	}
}

// Docs writes docs/translation.md from the table: per source every path, what becomes of it, and by which rule or why.
func Docs(into io.Writer) error {
	about := map[string]string{}
	for _, doc := range sourceDocs() {
		about[doc.source] = doc.about
	}
	var out strings.Builder
	out.WriteString(`# Translation

What becomes of every field of a legacy cluster. This page is made from the table in ` + "`internal/translate/fields.go`" + ` and
` + "`fields_ignition.go`" + `; a test compares it. For one field, ` + "`migrate explain FIELD`" + ` prints its rows, and with ` + "`--from SNAPSHOT`" + `
also the places its values went to.

| Disposition | Meaning |
| --- | --- |
| ` + string(Mapped) + ` | the value arrives in the new objects, unchanged or in another notation |
| ` + string(Derived) + ` | the value takes part in computing others |
| ` + string(Dropped) + ` | the value is not carried over; the reason says why nothing is lost |
| ` + string(NeedsDecision) + ` | a human has to choose |

The table is the rule, a plan the result. There, a field that is empty or that no rule had a need of counts as dropped, and one whose
value cannot be used waits for a decision; each says so in its reason. A field without a row is never skipped: it becomes finding
[TRN-FIELD-001](findings.md#trn-field-001).

In paths, ` + "`[]`" + ` stands for any position of a list, ` + "`[key]`" + ` for a key that is no plain name, ` + "`*`" + ` for any text. An exact path wins over
one with a star; among equals, a row for a part (` + "`Secret/worker`" + `) wins over one for the kind (` + "`Secret`" + `). In boot data, ` + "`file:PATH#SETTING`" + ` is a
setting inside a file and ` + "`unit:NAME#SETTING`" + ` one inside a systemd unit.
`)
	for _, group := range allFields() {
		text, known := about[group.source]
		if !known {
			return fmt.Errorf("documenting source %s: it has no sentence in sourceDocs", group.source)
		}
		fmt.Fprintf(&out, "\n## %s\n\n%s\n\n| Field | Disposition | Rule or reason |\n| --- | --- | --- |\n", group.source, text)
		for _, r := range group.rows {
			reason := strings.ReplaceAll(r.why, "<", "&lt;")
			if r.rule != "" {
				reason = "`" + r.rule + "`"
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s |\n", cell(r.path), r.is, cell(reason))
		}
	}
	if _, err := io.WriteString(into, out.String()); err != nil {
		return fmt.Errorf("writing the page of the translation: %w", err)
	}
	return nil
}

// cell keeps a text inside its cell of a Markdown table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(text)
}
