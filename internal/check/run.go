package check

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agnivade/levenshtein"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

// Options choose what Run does. The zero value runs every check and accepts nothing.
type Options struct {
	// Only are the ids of the checks to report; empty means all. Checks they rest on run too, but are not reported.
	Only []string
	// Accept are the waivers given by a human.
	Accept []Accepted
}

// UsageError means that the caller asked for something that does not exist or is not allowed; nothing was checked.
type UsageError struct {
	// Problems are sentences, one per mistake.
	Problems []string
}

func (e *UsageError) Error() string { return strings.Join(e.Problems, "; ") }

// Run runs the checks over the facts and returns the report, in the registry's order.
//
//  1. Waivers and ids are validated; a mistake is a *UsageError and nothing runs.
//  2. What several checks need is computed once: certificates are parsed here and nowhere else.
//  3. Checks run in parallel, layer by layer: a check whose prerequisite did not hold is skipped, one that panics has outcome error.
//  4. Waivers turn block and decide into warnings that say who accepted what.
//
// A context that ends leaves the remaining checks with outcome error: an interrupted check is not a pass.
func Run(ctx context.Context, facts Facts, options Options) (Report, error) {
	return run(ctx, Registry(), facts, options)
}

func run(ctx context.Context, registry []Check, facts Facts, options Options) (Report, error) {
	if err := validate(registry, options); err != nil {
		return Report{}, err
	}
	if facts.Cluster == nil {
		return Report{}, errors.New("checking a cluster: there is no picture of it")
	}
	if facts.Now.IsZero() {
		return Report{}, errors.New("checking a cluster: the time is not given")
	}
	results := results(ctx, registry, newView(facts))
	report := Report{
		APIVersion: migrationv1alpha1.APIVersion,
		Kind:       migrationv1alpha1.KindCheckReport,
		Metadata:   Metadata{CreatedAt: facts.Now, Tool: facts.Tool},
		Source:     facts.Source,
		Outcome:    Pass,
		Results:    []Result{},
		Findings:   []finding.Finding{},
	}
	report.Cluster, report.Organization = facts.Cluster.ID, facts.Cluster.Organization
	// Whoever asks for one check wants its answer, not fifty lines about the rest.
	if len(options.Only) == 0 {
		report.Findings = append(report.Findings, facts.Cluster.Problems...)
		report.Findings = append(report.Findings, facts.Translation...)
		finding.Sort(report.Findings)
	}

	for n, check := range registry {
		if len(options.Only) > 0 && !slices.Contains(options.Only, check.ID) {
			continue
		}
		result := accept(results[n], options.Accept, facts.Now)
		if result.Accepted != nil {
			report.Accepted = append(report.Accepted, *result.Accepted)
		}
		report.Outcome = worse(report.Outcome, result.Outcome)
		count(&report.Summary, result.Outcome)
		report.Results = append(report.Results, result)
	}
	return report, nil
}

// results runs every check once, in layers of checks whose prerequisites are done.
func results(ctx context.Context, registry []Check, seen *view) []Result {
	results := make([]Result, len(registry))
	outcomes := map[string]Outcome{}
	for pending := indexes(registry); len(pending) > 0; {
		var layer, later []int
		for _, n := range pending {
			if slices.ContainsFunc(registry[n].After, func(id string) bool { return outcomes[id] == "" }) {
				later = append(later, n)
				continue
			}
			layer = append(layer, n)
		}
		if len(layer) == 0 {
			// Only a registry with a circle gets here, which a test excludes.
			for _, n := range later {
				results[n] = result(registry[n], verdict{outcome: Error, detail: "its prerequisites wait for each other"})
			}
			return results
		}
		limit := make(chan struct{}, runtime.GOMAXPROCS(0))
		var group sync.WaitGroup
		for _, n := range layer {
			limit <- struct{}{}
			group.Go(func() {
				defer func() { <-limit }()
				results[n] = result(registry[n], one(ctx, registry[n], seen, outcomes))
			})
		}
		group.Wait()
		for _, n := range layer {
			outcomes[registry[n].ID] = results[n].Outcome
		}
		pending = later
	}
	return results
}

func indexes(registry []Check) []int {
	all := make([]int, len(registry))
	for n := range registry {
		all[n] = n
	}
	return all
}

// one runs a single check. A panic is the check's fault alone: the others go on, and the report names it.
func one(ctx context.Context, check Check, seen *view, outcomes map[string]Outcome) (found verdict) {
	defer func() {
		if problem := recover(); problem != nil {
			// Only runtime errors are repeated: a panic's value could hold anything, also a key.
			detail := "the check itself failed"
			var bug runtime.Error
			if err, ok := problem.(error); ok && errors.As(err, &bug) {
				detail = fmt.Sprintf("the check itself failed: %v", bug)
			}
			found = verdict{outcome: Error, detail: detail, hint: "report this with `migrate bundle`; it is a mistake in the program"}
		}
	}()
	if err := ctx.Err(); err != nil {
		return verdict{outcome: Error, detail: "interrupted before it could look"}
	}
	for _, id := range check.After {
		if outcome := outcomes[id]; outcome != Pass && outcome != Warn {
			return skipped("needs %s", id)
		}
	}
	for _, need := range check.Needs {
		if reason, failed := seen.lacks(need); reason != "" {
			if failed {
				return verdict{outcome: Error, detail: reason, hint: "give the account the right to read it, then check again"}
			}
			return skipped("%s", reason)
		}
	}
	return check.run(seen)
}

// result completes a verdict with what the registry knows about the check.
func result(check Check, found verdict) Result {
	if found.outcome == "" {
		found.outcome = check.Severity
	}
	result := Result{
		ID: check.ID, Category: check.Category, Title: check.Title,
		Outcome: found.outcome, Detail: found.detail, Items: slices.Clone(found.items),
	}
	slices.Sort(result.Items)
	result.Items = slices.Compact(result.Items)
	switch found.outcome {
	case Pass, Skip:
		result.Hint = found.hint
	case Warn, Block, Decide, Error:
		result.Hint = found.hint
		if result.Hint == "" {
			result.Hint = check.Hint
		}
		result.Docs = "docs/checks.md#" + check.Anchor()
	}
	return result
}

// accept turns a block or a decision into a warning when a waiver covers it.
func accept(result Result, accepted []Accepted, now time.Time) Result {
	if result.Outcome != Block && result.Outcome != Decide {
		return result
	}
	n := slices.IndexFunc(accepted, func(waiver Accepted) bool { return waiver.ID == result.ID })
	if n < 0 {
		return result
	}
	waiver := accepted[n]
	if waiver.Until != nil && !now.Before(*waiver.Until) {
		result.Detail += fmt.Sprintf(" (was accepted until %s: %s)", waiver.Until.UTC().Format("2006-01-02 15:04 UTC"), waiver.Reason)
		return result
	}
	result.Outcome, result.Accepted = Warn, &waiver
	return result
}

// validate refuses waivers and ids before anything runs: a typing mistake must not look like an accepted finding.
func validate(registry []Check, options Options) error {
	var problems []string
	known := func(id string) (Check, bool) {
		n := slices.IndexFunc(registry, func(check Check) bool { return check.ID == id })
		if n < 0 {
			problems = append(problems, "there is no check "+id+suggest(registry, id))
			return Check{}, false
		}
		return registry[n], true
	}
	for _, id := range options.Only {
		known(id)
	}
	given := map[string]bool{}
	for _, waiver := range options.Accept {
		check, ok := known(waiver.ID)
		if !ok {
			continue
		}
		switch {
		case strings.TrimSpace(waiver.Reason) == "":
			problems = append(problems, "accepting "+waiver.ID+" needs a reason")
		case !check.Waivable():
			problems = append(problems, waiver.ID+" cannot be accepted: "+check.Fixed)
		case given[waiver.ID]:
			problems = append(problems, waiver.ID+" is accepted twice")
		}
		given[waiver.ID] = true
	}
	if len(problems) > 0 {
		return &UsageError{Problems: problems}
	}
	return nil
}

// suggest returns the nearest id as a question, or nothing when none is near.
func suggest(registry []Check, id string) string {
	best, distance := "", len("CHK-XX-000")/2+1
	for _, check := range registry {
		if d := levenshtein.ComputeDistance(strings.ToUpper(id), check.ID); d < distance {
			best, distance = check.ID, d
		}
	}
	if best == "" {
		return "; `migrate explain` lists them"
	}
	return "; did you mean " + best + "?"
}

func count(summary *Summary, outcome Outcome) {
	switch outcome {
	case Pass:
		summary.Pass++
	case Warn:
		summary.Warn++
	case Block:
		summary.Block++
	case Decide:
		summary.Decide++
	case Skip:
		summary.Skip++
	case Error:
		summary.Error++
	}
}
