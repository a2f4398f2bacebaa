package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

const (
	// maxSaved is far more than the plan of the largest cluster.
	maxSaved = 256 << 20
	// dryRunsAtOnce bounds the requests of one comparison; the client's rate limit holds all the same.
	dryRunsAtOnce = 16
)

type planOptions struct {
	source   sourceFlags
	examine  examineFlags
	outputs  outputs
	view     rendering
	all      bool
	save     string
	against  string
	validFor time.Duration
	detailed bool
	// estimates is the file with what was learnt.
	estimates string
	// until is the last phase of the nights that the plan tells of.
	until string
}

func (s *session) planCommand() *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan [CLUSTER]",
		Short: "What a migration would do, field by field, without doing it",
		Long: `Translates a legacy cluster, compares the result with the management cluster by server-side dry runs (or, with --from, with the
snapshot) and shows what would be created, adopted, replaced and removed, where every value comes from, and what needs a decision.

Exit code 0 means that a plan was made. With --detailed-exitcode it says more: 5 the plan given with --against is stale, 3 blocked,
8 a decision is open, 2 there are changes, 0 there are none.

With --playbook or --estimates the plan also says how long each phase takes, in which windows it would be done, when the last node may begin, and who has to
approve what. Nothing of that changes what would be done.

CLUSTER may be left out when a snapshot holds only one.`,
		Example: `  migrate plan al9qy
  migrate plan al9qy --playbook acme.yaml --audience customer -o html=nights.html
  migrate plan al9qy -o text -o html=report.html --out al9qy.plan
  migrate plan al9qy --decisions decisions.yaml --ca-cert ca.crt --ca-key ca.key --detailed-exitcode
  migrate plan al9qy --against al9qy.plan
  migrate plan --from snapshot.tar.gz --all -o json=plan-{cluster}.json`,
		Args:              atMostOne("cluster"),
		ValidArgsFunction: s.completeClusters(&o.source, false),
		RunE:              func(cmd *cobra.Command, args []string) error { return s.plan(cmd.Context(), o, args) },
	}
	flags := cmd.Flags()
	o.source.addTo(cmd)
	flags.BoolVar(&o.all, "all", false, "plan every cluster; names of files then contain {cluster}")
	flags.StringVar(&o.save, "out", "", "save the plan in this file; migrate show renders it again")
	flags.StringVar(&o.against, "against", "", "an earlier plan; say what has drifted since")
	addEstimatesFlag(cmd, &o.estimates)
	flags.StringVar(&o.until, "until", "", "tell of the nights up to this phase only, as migrate run --until goes: "+strings.Join(migrate.PhaseNames(), ", ")+" (default: all)")
	complete(cmd, "until", fixed(migrate.PhaseNames()...))
	flags.DurationVar(&o.validFor, "valid-for", 24*time.Hour, "for how long migrate run --plan takes the plan")
	flags.BoolVar(&o.detailed, "detailed-exitcode", false, "let the exit code say what the plan says")
	o.examine.addTo(cmd)
	addOutputFlag(cmd, &o.outputs, formatsOf(report.KindPlan))
	o.view.addTo(cmd, true)
	return cmd
}

// check finds what is wrong with the flags before anything is looked at. A default for --until is for migrate run: it is in the way of no plan without nights.
func (o *planOptions) check(args []string, typed func(flag string) bool) error {
	nights := o.examine.hasBook() || o.estimates != ""
	if !nights && !typed("until") {
		o.until = ""
	}
	switch {
	case o.validFor <= 0:
		return usage("", "--valid-for is %s; it has to be longer than nothing", o.validFor)
	case o.all && len(args) > 0:
		return usage("", "--all and a cluster do not go together")
	case o.until != "" && !nights:
		return usage("--playbook FILE", "--until tells of nights, which a playbook or estimates say")
	}
	if err := o.examine.check(); err != nil {
		return err
	}
	return knownPhase("--until", o.until)
}

// plan opens the source, makes the plan of one cluster or of all, renders and saves.
func (s *session) plan(ctx context.Context, o planOptions, args []string) error {
	outs, err := o.destinations()
	if err != nil {
		return err
	}
	if err := o.check(args, s.typed); err != nil {
		return err
	}
	p, err := s.open(ctx, o.source, true)
	if err != nil {
		return err
	}
	ids, err := p.IDs(ctx)
	if err != nil {
		return err
	}
	if len(args) == 1 && !slices.Contains(ids, args[0]) {
		if done, err := s.finalized(ctx, p, args[0]); err != nil || done != nil {
			return failure.Join(err, s.planNothing(ctx, o, outs, p, done))
		}
	}
	wanted, err := o.wanted(ctx, p, args, ids)
	if err != nil {
		return err
	}
	if len(wanted) > 1 {
		if err := separate(outs, o.against); err != nil {
			return err
		}
	}
	e, err := s.examiner(ctx, p, ids, o.examine)
	if err != nil {
		return err
	}
	e.validFor = o.validFor
	return s.planAll(ctx, o, e, outs, wanted)
}

// wanted are the clusters to plan: the one that is named, the only one, or all.
func (o planOptions) wanted(ctx context.Context, p *place, args, ids []string) ([]string, error) {
	if o.all && len(ids) > 0 {
		return ids, nil
	}
	if o.all {
		_, err := p.choose(ctx, nil, nil, "")
		return nil, err
	}
	id, err := p.choose(ctx, args, ids, "migrate plan CLUSTER, or --all; ")
	return []string{id}, err
}

// destinations are the outputs, the saved plan among them.
func (o planOptions) destinations() ([]output, error) {
	formats := formatsOf(report.KindPlan)
	outs, err := o.outputs.resolved(formats)
	if err != nil {
		return nil, err
	}
	if o.save == "-" {
		return nil, usage("-o json", "--out needs a file")
	}
	if o.save != "" {
		all := append(outputs{}, outs...)
		if outs, err = new(append(all, output{format: "json", file: o.save})).resolved(formats); err != nil {
			return nil, err
		}
	}
	// A folder may be named after a cluster; such a one is looked at when its turn comes.
	for _, file := range filesOf(outs) {
		if !strings.Contains(file, clusterPlaceholder) {
			if err := checkFolders(file); err != nil {
				return nil, err
			}
		}
	}
	return outs, nil
}

// separate refuses files that several plans would overwrite.
func separate(outs []output, against string) error {
	files := filesOf(outs)
	if against != "" {
		files = append(files, against)
	}
	for _, file := range files {
		if file != "" && !strings.Contains(file, clusterPlaceholder) {
			return usage("put {cluster} into its name, for example -o json=plans/{cluster}.json", "file %s would be used for every cluster", file)
		}
	}
	for _, out := range outs {
		if out.file == "" && out.format == "html" {
			return usage("-o html=plans/{cluster}.html", "several pages cannot go to standard output")
		}
	}
	return nil
}

// planned is what is left of a plan when its memory is free again.
type planned struct {
	stdout bytes.Buffer
	code   Code
}

// planAll makes plans side by side and shows them in order. One that fails does not stop the others.
func (s *session) planAll(ctx context.Context, o planOptions, e *examiner, outs []output, ids []string) error {
	counter := newProgress(s.app.Err, "plans made", len(ids), s.watched(), s.global.quiet, s.app.Clock.Now)
	defer counter.stop()
	var failures []error
	code, shown := CodeOK, 0
	inOrder(ctx, len(ids), runtime.GOMAXPROCS(0), func(i int) (*planned, error) {
		defer counter.step()
		return s.planOne(ctx, o, e, outs, ids[i])
	}, func(i int, made *planned, err error) {
		if err != nil {
			if len(ids) > 1 {
				err = fmt.Errorf("planning cluster %s: %w", ids[i], err)
			}
			failures = append(failures, err)
			return
		}
		code = worseCode(code, made.code)
		if made.stdout.Len() == 0 {
			return
		}
		if shown++; shown > 1 {
			_, _ = io.WriteString(s.out, between(outs))
		}
		_, err = made.stdout.WriteTo(s.out)
		if err != nil {
			failures = append(failures, fmt.Errorf("writing to standard output: %w", err))
		}
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := failure.Join(failures...); err != nil {
		return err
	}
	if !o.detailed {
		return nil
	}
	return ended(code)
}

// between separates documents on standard output in the way their format does.
func between(outs []output) string {
	for _, out := range outs {
		if out.file != "" {
			continue
		}
		switch out.format {
		case "yaml":
			return "---\n"
		case "json", "name":
			return ""
		}
	}
	return "\n"
}

// planOne examines a cluster, builds its plan and writes it.
func (s *session) planOne(ctx context.Context, o planOptions, e *examiner, outs []output, id string) (*planned, error) {
	mine := make([]output, len(outs))
	for i, out := range outs {
		file, err := forCluster(out.file, id)
		if err != nil {
			return nil, err
		}
		if file != out.file {
			if err := checkFolders(file); err != nil {
				return nil, err
			}
		}
		mine[i] = output{format: out.format, file: file}
	}
	earlier, err := o.earlier(id)
	if err != nil {
		return nil, err
	}
	document, found, err := e.plan(ctx, id, earlier)
	if err != nil {
		return nil, err
	}
	if document.Schedule, err = s.nights(ctx, o, e, found, document); err != nil {
		return nil, err
	}
	made := &planned{code: codeOfPlan(document)}
	err = deliver(ctx, &made.stdout, mine, func(w io.Writer, out output) error {
		return report.Render(w, out.format, document, kept(s.options(o.view, out), savedIn(mine), out))
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

// savedIn is the file from which a plan can be read again: that of --out, which is the last one, else one with the document itself. Empty when there is none.
func savedIn(outs []output) string {
	for _, out := range slices.Backward(outs) {
		if out.file != "" && (out.format == "json" || out.format == "yaml") {
			return out.file
		}
	}
	return ""
}

// kept tells a rendering where the plan is saved. What is written into a file is passed on, and must not tell where a person keeps files.
func kept(opts report.Options, file string, out output) report.Options {
	if opts.Saved = file; file != "" && out.file != "" {
		opts.Saved = filepath.Base(file)
	}
	return opts
}

// plan examines a cluster and builds its plan. What was found is returned as well.
func (e *examiner) plan(ctx context.Context, id string, earlier *plan.Plan) (*plan.Plan, *examination, error) {
	found, err := e.examine(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	document, err := e.document(ctx, found, earlier)
	return document, found, err
}

// document is the plan of what was found.
func (e *examiner) document(ctx context.Context, found *examination, earlier *plan.Plan) (*plan.Plan, error) {
	comparer := plan.Offline(found.cluster.Existing)
	if e.place.live != nil {
		comparer = plan.Live(e.place.live.Applier, found.cluster.Existing, dryRunsAtOnce)
	}
	return plan.Build(ctx, plan.Input{
		Cluster: found.now, Result: found.result, Report: &found.report, Comparer: comparer,
		Source: e.place.Describe(), Now: e.now, Tool: e.tool, CAKey: found.caKey, Against: earlier, ValidFor: e.validFor, ControlPlanes: e.controlPlanes,
	})
}

// planNothing is the plan of a cluster that is migrated to the end: nothing is left of it to plan with, and nothing to do.
func (s *session) planNothing(ctx context.Context, o planOptions, outs []output, p *place, done *migrationv1alpha1.ClusterMigration) error {
	if done == nil {
		return nil
	}
	document, err := plan.Build(ctx, plan.Input{
		Cluster: &legacy.Cluster{ID: done.Spec.ClusterID}, Result: &translate.Result{Namespace: done.Namespace}, Report: &check.Report{}, Source: p.Describe(), Now: s.now, Tool: s.app.Version.Version,
	})
	if err != nil {
		return err
	}
	err = deliver(ctx, s.out, outs, func(w io.Writer, out output) error {
		return report.Render(w, out.format, document, s.options(o.view, out))
	})
	if err != nil || !o.detailed {
		return err
	}
	return ended(codeOfPlan(document))
}

// earlier reads the plan to compare with; nil when there is none.
func (o planOptions) earlier(id string) (*plan.Plan, error) {
	if o.against == "" {
		return nil, nil
	}
	return readPlan("--against", o.against, id)
}

// readDocument reads a saved document; "-" is standard input.
func readDocument(name string, stdin io.Reader) (any, error) {
	input := stdin
	if name != "-" || stdin == nil {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("opening the document: %w", err)
		}
		defer func() { _ = file.Close() }()
		input = file
	}
	data, err := io.ReadAll(io.LimitReader(input, maxSaved+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(data) > maxSaved {
		return nil, withHint(fmt.Errorf("reading %s: it is larger than any document", name), aDocument)
	}
	document, err := report.Decode(data)
	if err != nil {
		return nil, withHint(fmt.Errorf("%s: %w", name, err), aDocument)
	}
	return document, nil
}

// aDocument is what is wanted where something else was given.
const aDocument = "give a file that migrate inventory, check or plan wrote as JSON or YAML"

// errNotStarted stands for work that a cancelled context kept from starting.
var errNotStarted = errors.New("not started")

// inOrder works on n items side by side and hands over the results one after the other in the order of the items. Results that wait
// for their turn count as work, so memory is bounded by the number of workers.
func inOrder[T any](ctx context.Context, n, workers int, work func(i int) (T, error), use func(i int, result T, err error)) {
	type done struct {
		result T
		err    error
	}
	results := make([]chan done, n)
	for i := range results {
		results[i] = make(chan done, 1)
	}
	slots := make(chan struct{}, workers+1)
	var group sync.WaitGroup
	group.Go(func() {
		for i := range n {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				results[i] <- done{err: errors.Join(errNotStarted, ctx.Err())}
				continue
			}
			group.Go(func() {
				result, err := work(i)
				results[i] <- done{result, err}
			})
		}
	})
	for i := range n {
		d := <-results[i]
		use(i, d.result, d.err)
		if !errors.Is(d.err, errNotStarted) {
			<-slots
		}
	}
	group.Wait()
}
