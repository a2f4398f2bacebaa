package check

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Docs writes docs/checks.md: one section per check, with the check's id as its anchor.
func Docs(into io.Writer) error {
	var out strings.Builder
	out.WriteString(`# Checks

What ` + "`migrate check`" + ` looks at before a migration, in the order it reports. This page is made from the registry in
` + "`internal/check/registry.go`" + `; ` + "`migrate explain CHK-…`" + ` prints the same sections.

| Outcome | Meaning |
| --- | --- |
| pass | the statement in the title holds |
| warn | a human should know; nothing stops |
| decide | a human has to choose |
| block | the migration must not start |
| skip | what the check needs is not there, for example because a snapshot was read; the report says what |
| error | the check could not look; that is not a pass |

A block or a decision can be accepted with ` + "`--accept ID=REASON`" + ` or in a decisions file, where the section below says so. It then is
a warning that names the reason, and blocks again when the acceptance has run out.
`)
	category := ""
	for _, check := range Registry() {
		if check.Category != category {
			category = check.Category
			fmt.Fprintf(&out, "\n## %s\n", strings.ToUpper(category[:1])+category[1:])
		}
		fmt.Fprintf(&out, "\n### %s\n\n", check.ID)
		section(&out, check)
	}
	if _, err := io.WriteString(into, out.String()); err != nil {
		return fmt.Errorf("writing the page of checks: %w", err)
	}
	return nil
}

// section writes a check's explanation without its heading.
func section(out *strings.Builder, check Check) {
	fmt.Fprintf(out, "**%s** (%s when not)\n\n", check.Title, check.Severity)
	fmt.Fprintf(out, "*What it looks at.* %s\n\n", check.Looks)
	fmt.Fprintf(out, "*Why it matters.* %s\n\n", check.Why)
	fmt.Fprintf(out, "*How to fix it.* %s\n\n", check.Fix)
	if len(check.After) > 0 {
		fmt.Fprintf(out, "*Needs* %s.\n\n", strings.Join(check.After, ", "))
	}
	switch {
	case !check.Waivable():
		fmt.Fprintf(out, "*Cannot be accepted:* %s.\n", check.Fixed)
	case check.Severity == Warn:
		out.WriteString("*Needs no acceptance:* it does not stop a migration.\n")
	default:
		fmt.Fprintf(out, "*Can be accepted* with `--accept %s=REASON`.\n", check.ID)
	}
}

// Explain returns the page of one check, in Markdown; ok is false for an unknown id.
func Explain(id string) (text string, ok bool) {
	all := Registry()
	n := slices.IndexFunc(all, func(check Check) bool { return strings.EqualFold(check.ID, id) })
	if n < 0 {
		return "", false
	}
	var out strings.Builder
	fmt.Fprintf(&out, "# %s\n\n", all[n].ID)
	section(&out, all[n])
	return out.String(), true
}

// IDs returns the ids of all checks, in the registry's order.
func IDs() []string {
	registry := Registry()
	ids := make([]string, 0, len(registry))
	for _, check := range registry {
		ids = append(ids, check.ID)
	}
	return ids
}
