package report

import (
	"io"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// namePlan lists the objects the plan changes, as Kind/namespace/name.
func namePlan(w io.Writer, doc *plan.Plan, o Options) error {
	positions, err := choosePhases(doc, o.Only)
	if err != nil {
		return err
	}
	var names []string
	if o.Only == "" {
		for _, c := range doc.Changes {
			names = append(names, c.Object)
		}
	} else {
		for _, i := range positions {
			for _, c := range phaseChanges(doc, doc.Phases[i].Name) {
				names = append(names, c.Object)
			}
		}
	}
	return writeNames(w, names, o)
}

// nameChecks lists the ids of the checks; with Short only of those that need attention.
func nameChecks(w io.Writer, doc *check.Report, o Options) error {
	var names []string
	for _, r := range doc.Results {
		if !o.Short || r.Outcome != check.Pass && r.Outcome != check.Skip {
			names = append(names, r.ID)
		}
	}
	return writeNames(w, names, o)
}

// nameInventory lists the ids of the clusters.
func nameInventory(w io.Writer, doc *check.Inventory, o Options) error {
	names := make([]string, len(doc.Clusters))
	for i, e := range doc.Clusters {
		names[i] = e.ID
	}
	return writeNames(w, names, o)
}

func writeNames(w io.Writer, names []string, o Options) error {
	var out strings.Builder
	for _, name := range names {
		out.WriteString(neutralise(name, o.ASCII))
		out.WriteByte('\n')
	}
	_, err := io.WriteString(w, out.String())
	return err
}
