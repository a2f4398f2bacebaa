package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/config/crd/migration"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// establishing is how long an API server may take to serve a new kind.
const establishing = time.Minute

// LockKey names the Lease of a cluster's run lock.
func LockKey(namespace, id string) client.ObjectKey {
	return client.ObjectKey{Namespace: namespace, Name: id + lockSuffix}
}

// Prepare makes what a migration keeps its state in: the kind ClusterMigration, and the target namespace with everything that the
// translation says about it. Both are safe to repeat, by several people at once. A definition of ClusterMigration that knows less than this program is
// renewed, because an API server drops what it does not know without a word; one that knows more, of a later program, stays.
func Prepare(ctx context.Context, side adopt.Side, clk clock.Clock, namespace *unstructured.Unstructured) error {
	definition := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(migration.ClusterMigrationCRD(), &definition.Object); err != nil {
		return fmt.Errorf("reading the definition of %s: %w", migrationv1alpha1.Kind, err)
	}
	kind := schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(kind)
	err := side.Client.Get(ctx, client.ObjectKeyFromObject(definition), have)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading CustomResourceDefinition %s: %w", definition.GetName(), err)
	}
	lacking := lacks(have, definition)
	if err != nil || !established(have) || lacking != "" {
		if _, err := side.Writer.Apply(ctx, definition); err != nil {
			return fmt.Errorf("%w; %s lacks %s; somebody with the right to may renew it: migrate crd | kubectl apply --server-side --force-conflicts -f -",
				err, definition.GetName(), cmp.Or(lacking, "a version that is served"))
		}
		if err := awaitEstablished(ctx, side, clk, kind, definition.GetName()); err != nil {
			return err
		}
	}
	if namespace == nil {
		return nil
	}
	there := &unstructured.Unstructured{}
	there.SetGroupVersionKind(namespace.GroupVersionKind())
	err = side.Client.Get(ctx, client.ObjectKeyFromObject(namespace), there)
	if err == nil {
		return nil
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading Namespace %s: %w", namespace.GetName(), err)
	}
	_, err = side.Writer.Apply(ctx, namespace)
	return err
}

func awaitEstablished(ctx context.Context, side adopt.Side, clk clock.Clock, kind schema.GroupVersionKind, name string) error {
	ctx, cancel := context.WithTimeout(ctx, establishing)
	defer cancel()
	return kube.Await(ctx, side.Client, clk, kube.Scope{GroupVersionKind: kind}, func(objects map[types.UID]*unstructured.Unstructured) string {
		for _, o := range objects {
			if o.GetName() == name && established(o) {
				return ""
			}
		}
		return "the API server to serve " + name
	})
}

func established(crd *unstructured.Unstructured) bool {
	conditions, _, err := unstructured.NestedSlice(crd.Object, "status", "conditions")
	if err != nil {
		return false
	}
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Established" && m["status"] == "True" {
			return true
		}
	}
	return false
}

// StageOf says how far a migration has unpaused its objects.
func StageOf(object *migrationv1alpha1.ClusterMigration) adopt.Stage {
	stages := []struct {
		step  string
		stage adopt.Stage
	}{{"adopt/free-machines", adopt.MachinesFree}, {"adopt/free-cluster", adopt.ClusterFree}, {"adopt/free-infrastructure", adopt.InfrastructureFree}}
	for _, s := range stages {
		for i := range object.Status.Steps {
			if record := &object.Status.Steps[i]; record.ID == s.step && record.State == migrationv1alpha1.StepDone {
				return s.stage
			}
		}
	}
	return adopt.AllPaused
}

// SetPause asks a running or coming run to wait, or with nil lets it go on, whoever has paused it.
func SetPause(ctx context.Context, c client.Client, object *migrationv1alpha1.ClusterMigration, pause *migrationv1alpha1.Pause) error {
	before := object.DeepCopy()
	object.Spec.Pause = pause
	if err := c.Patch(ctx, object, client.MergeFrom(before), client.FieldOwner(kube.FieldOwner)); err != nil {
		return fmt.Errorf("patching ClusterMigration %s: %w", client.ObjectKeyFromObject(object), err)
	}
	return nil
}

// PausedAnewError means that somebody has paused a migration after another pause was seen, which was to be ended.
type PausedAnewError struct{ Pause *migrationv1alpha1.Pause }

func (e *PausedAnewError) Error() string {
	return fmt.Sprintf("it was paused meanwhile by %s: %s", e.Pause.By, e.Pause.Reason)
}

// Lift ends the pause that a migration had when it was read, and no other one, whose reason nobody has seen. Afterwards the object is what the server has.
func Lift(ctx context.Context, c client.Client, object *migrationv1alpha1.ClusterMigration) error {
	seen := object.Spec.Pause
	return amend(ctx, c, object, func(fresh *migrationv1alpha1.ClusterMigration) error {
		if pause := fresh.Spec.Pause; pause != nil && !equality.Semantic.DeepEqual(pause, seen) {
			return &PausedAnewError{Pause: pause}
		}
		fresh.Spec.Pause = nil
		return nil
	})
}

// amend changes a migration as the server has it, and the object is that afterwards: a run at work writes there all the time, so what was read is no base for a change.
func amend(ctx context.Context, c client.Client, object *migrationv1alpha1.ClusterMigration, change func(fresh *migrationv1alpha1.ClusterMigration) error) error {
	key := client.ObjectKeyFromObject(object)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		fresh := &migrationv1alpha1.ClusterMigration{}
		if err := c.Get(ctx, key, fresh); err != nil {
			return fmt.Errorf("reading ClusterMigration %s: %w", key, err)
		}
		before := fresh.DeepCopy()
		if err := change(fresh); err != nil {
			return err
		}
		if err := c.Patch(ctx, fresh, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(kube.FieldOwner)); err != nil {
			return fmt.Errorf("patching ClusterMigration %s: %w", key, err)
		}
		fresh.DeepCopyInto(object)
		return nil
	})
}

// decide writes what somebody has decided into a migration. It fails when the migration was taken back since it was read, because what was
// decided may have been about what is there no more.
func decide(ctx context.Context, c client.Client, object *migrationv1alpha1.ClusterMigration, change func(*migrationv1alpha1.ClusterMigrationSpec)) error {
	seen, rollbacks := object.UID, object.Spec.Rollbacks
	return amend(ctx, c, object, func(fresh *migrationv1alpha1.ClusterMigration) error {
		if fresh.UID != seen || fresh.Spec.Rollbacks != rollbacks {
			return fmt.Errorf("ClusterMigration %s: %w", client.ObjectKeyFromObject(fresh), errTakenBackMeanwhile)
		}
		change(&fresh.Spec)
		return nil
	})
}

var errTakenBackMeanwhile = errors.New("it was taken back meanwhile, and nothing was recorded; migrate status says how it stands now")

// Approve records that somebody agreed to what a gate is for; an earlier agreement to the same is replaced.
func Approve(ctx context.Context, c client.Client, object *migrationv1alpha1.ClusterMigration, approval migrationv1alpha1.Approval) error {
	err := decide(ctx, c, object, func(spec *migrationv1alpha1.ClusterMigrationSpec) {
		spec.Approvals = append(slices.DeleteFunc(spec.Approvals, func(a migrationv1alpha1.Approval) bool { return a.Gate == approval.Gate }), approval)
	})
	if err != nil {
		return err
	}
	// A definition of before drops fields that it does not know, without a word.
	if !slices.ContainsFunc(object.Spec.Approvals, func(a migrationv1alpha1.Approval) bool { return a.Gate == approval.Gate && a.By == approval.By }) {
		return fmt.Errorf("approving %s of ClusterMigration %s: %w", approval.Gate, client.ObjectKeyFromObject(object), ErrOldDefinition)
	}
	return nil
}

// SkippableSteps are the ids of the steps that people may have left out, in their order.
func SkippableSteps() []string {
	var ids []string
	for _, p := range Graph() {
		for _, s := range p.Steps {
			if s.Skippable {
				ids = append(ids, s.ID)
			}
		}
	}
	return ids
}

// SkipStep records that somebody had a step left out.
func SkipStep(ctx context.Context, c client.Client, object *migrationv1alpha1.ClusterMigration, skip migrationv1alpha1.Skip) error {
	same := func(s migrationv1alpha1.Skip) bool { return s.Step == skip.Step }
	err := decide(ctx, c, object, func(spec *migrationv1alpha1.ClusterMigrationSpec) {
		spec.Skips = append(slices.DeleteFunc(spec.Skips, same), skip)
	})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(object.Spec.Skips, same) {
		return fmt.Errorf("skipping step %s of ClusterMigration %s: %w", skip.Step, client.ObjectKeyFromObject(object), ErrOldDefinition)
	}
	return nil
}

// ErrOldDefinition means that the management cluster's definition of ClusterMigration is older than this program.
var ErrOldDefinition = errors.New("the management cluster's definition of ClusterMigration is older than this program and does not keep it; renew it with: migrate crd | kubectl apply --server-side --force-conflicts -f -")

// Approved tells that an agreement to a gate is on record, and holds.
func Approved(object *migrationv1alpha1.ClusterMigration, gate string, now time.Time, terms Terms) bool {
	return approvalOf(object, gate, now, terms) != nil
}

// Terms are how long approvals count after they were given, by gate. A gate without one is bound by what its approval says alone.
type Terms map[string]time.Duration

// Tighten takes over the other terms where they are shorter.
func (t Terms) Tighten(other Terms) {
	for gate, term := range other {
		if own, found := t[gate]; term > 0 && (!found || term < own) {
			t[gate] = term
		}
	}
}

// End is when an approval stops counting: what it says itself or what the terms say, whichever is earlier; nil when it always counts.
func (t Terms) End(a *migrationv1alpha1.Approval) *time.Time {
	var end *time.Time
	if a.Until != nil {
		end = new(a.Until.Time)
	}
	if term := t[a.Gate]; term > 0 && (end == nil || a.At.Add(term).Before(*end)) {
		end = new(a.At.Add(term))
	}
	return end
}

// approvalOf is the agreement to a gate that is on record and holds; nil when there is none.
func approvalOf(object *migrationv1alpha1.ClusterMigration, gate string, now time.Time, terms Terms) *migrationv1alpha1.Approval {
	if object == nil {
		return nil
	}
	i := slices.IndexFunc(object.Spec.Approvals, func(a migrationv1alpha1.Approval) bool {
		end := terms.End(&a)
		return a.Gate == gate && (end == nil || now.Before(*end))
	})
	if i < 0 {
		return nil
	}
	return &object.Spec.Approvals[i]
}

// Report makes the document of a run that has ended.
func (e *Engine) Report(result Result, back bool) *history.RunReport {
	r := &history.RunReport{
		APIVersion: migrationv1alpha1.APIVersion, Kind: migrationv1alpha1.KindRunReport,
		Cluster: e.Work.id(), Namespace: e.Work.namespace(), Run: e.opts.Run, By: e.opts.By, Tool: e.opts.Tool,
		Direction: "forward", Until: cmp.Or(e.opts.Until, DefaultUntil), Final: result.Final, Exposed: result.Exposed, StartedAt: e.began.UTC().Truncate(time.Second), FinishedAt: e.Clock.Now().UTC().Truncate(time.Second),
		Outcome: string(result.Outcome), Message: result.Message, Accepted: e.opts.Accepted, Proof: e.Work.Proof, Impact: e.impact,
	}
	if back {
		r.Direction, r.Until, r.To = "back", "", e.kept
	}
	if e.Writes != nil {
		r.Writes = e.Writes.Writes()
	}
	r.Facts = FactsOf(e.Journal.Object)
	r.Phases = Describe(e.Graph, e.Journal.Object)
	for _, phase := range r.Phases {
		for i := range phase.Steps {
			step := &phase.Steps[i]
			step.Notes = e.Log.notes[step.ID]
			// The way back has no estimates.
			if e.opts.Estimates != nil && !back {
				r := e.opts.Estimates.Step(step.ID)
				step.Planned = &history.Planned{P50: r.P50.String(), P90: r.P90.String(), Samples: r.Samples}
			}
		}
	}
	return r
}

// FactsOf are what a migration owes an account of, of all its runs; nil when there is nothing yet.
func FactsOf(object *migrationv1alpha1.ClusterMigration) *history.Facts {
	if object == nil {
		return nil
	}
	status := &object.Status
	members := func(from []migrationv1alpha1.EtcdMember) []history.Member {
		var out []history.Member //nolint:prealloc // nil for none, as in the document
		for _, m := range from {
			out = append(out, history.Member{
				ID: m.ID, Name: m.Name, Role: m.Role, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs,
				Term: uint64(max(0, m.Term)), Index: uint64(max(0, m.Index)), Bytes: m.Bytes,
			})
		}
		return out
	}
	stretch := func(since, until *metav1.Time) *history.Stretch {
		if since == nil {
			return nil
		}
		out := &history.Stretch{Since: since.UTC()}
		if until != nil {
			at := until.UTC()
			out.Until = &at
		}
		return out
	}
	facts := &history.Facts{
		EtcdBefore: members(status.EtcdBefore), EtcdAfter: members(status.EtcdAfter),
		TwoMembers: stretch(status.TwoMembersSince, status.TwoMembersUntil), Unpublished: stretch(status.UnpublishedSince, status.UnpublishedUntil),
	}
	for i := range status.TwoMembersEarlier {
		s := &status.TwoMembersEarlier[i]
		facts.TwoMembersEarlier = append(facts.TwoMembersEarlier, *stretch(&s.Since, &s.Until))
	}
	if a := status.Authority; a != nil {
		facts.Authority = &history.Exposure{By: a.By, From: a.From, At: a.At.UTC()}
	}
	if status.ProvedAt != nil {
		facts.Proved = &history.Proved{At: status.ProvedAt.UTC(), Outcome: status.Proof}
	}
	if reflect.ValueOf(*facts).IsZero() {
		return nil
	}
	return facts
}

// Describe tells of every step of the graph how it went.
func Describe(graph []Phase, object *migrationv1alpha1.ClusterMigration) []history.Phase {
	records := map[string]*migrationv1alpha1.StepRecord{}
	if object != nil {
		for i := range object.Status.Steps {
			records[object.Status.Steps[i].ID] = &object.Status.Steps[i]
		}
	}
	phases := make([]history.Phase, 0, len(graph))
	for _, p := range graph {
		phase := history.Phase{Name: p.Name, Title: p.Title, Steps: []history.Step{}}
		for _, s := range p.Steps {
			phase.Steps = append(phase.Steps, describeStep(s, records[s.ID]))
		}
		phases = append(phases, phase)
	}
	return phases
}

func describeStep(s Step, record *migrationv1alpha1.StepRecord) history.Step {
	out := history.Step{ID: s.ID, Title: s.Title, State: "waiting"}
	if record == nil {
		return out
	}
	out.Attempts, out.Runs, out.Message = int(record.Attempts), int(record.Runs), record.Message
	switch record.State {
	case migrationv1alpha1.StepRunning:
		out.State = "running"
	case migrationv1alpha1.StepDone:
		out.State = "done"
	case migrationv1alpha1.StepFailed:
		out.State = "failed"
	case migrationv1alpha1.StepUndoing:
		out.State = "undoing"
	case migrationv1alpha1.StepUndone:
		if out.State = "undone"; notBegun(record) {
			out.State = "waiting"
		}
	case migrationv1alpha1.StepSkipped:
		out.State = "skipped"
	}
	if record.StartedAt != nil {
		at := record.StartedAt.UTC()
		out.StartedAt = &at
	}
	if record.FinishedAt != nil {
		at := record.FinishedAt.UTC()
		out.FinishedAt = &at
		if out.StartedAt != nil {
			out.Took = at.Sub(*out.StartedAt).String()
		}
	}
	return out
}
