package plan

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// Comparer finds out what applying objects would change. Implementations never write.
type Comparer interface {
	Compare(ctx context.Context, objects []*translate.Object) (Comparison, error)
}

// DryRunApplier asks the API server what a server-side apply would yield, without doing it.
type DryRunApplier interface {
	DryRunApply(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error)
}

// Comparison is what a Comparer found out.
type Comparison struct {
	// How says how the comparison was made, for the plan's basis.
	How string
	// States by Ref of the object; objects without a state could not be compared, and a finding says why.
	States   map[string]State
	Findings []finding.Finding
}

// State is what there is of one object.
type State struct {
	Exists bool
	// Diffs are the fields that would change, sorted by path; only for objects that exist.
	Diffs []Diff
}

// Diff is one field that would change.
type Diff struct {
	Path          string
	Before, After any
}

// Offline compares with objects from a snapshot: only the planned fields are looked at, and nothing is defaulted or validated.
func Offline(existing []unstructured.Unstructured) Comparer { return offline(indexed(existing)) }

type offline map[string]*unstructured.Unstructured

func indexed(existing []unstructured.Unstructured) map[string]*unstructured.Unstructured {
	index := make(map[string]*unstructured.Unstructured, len(existing))
	for i := range existing {
		index[identity(&existing[i])] = &existing[i]
	}
	return index
}

// identity names an object by group, kind, namespace and name, whatever version it was read in.
func identity(o *unstructured.Unstructured) string {
	kind := o.GroupVersionKind()
	return kind.Group + "/" + kind.Kind + "/" + o.GetNamespace() + "/" + o.GetName()
}

// Compare implements Comparer.
func (c offline) Compare(_ context.Context, objects []*translate.Object) (Comparison, error) {
	out := Comparison{How: "snapshot", States: map[string]State{}}
	if len(c) == 0 {
		out.How = "nothing: the snapshot holds no Cluster API objects"
	}
	for _, o := range objects {
		if o.Phase == translate.PhaseFinalize {
			continue
		}
		live, found := c[identity(&o.Unstructured)]
		state := State{Exists: found}
		if found {
			state.Diffs = diffValues(o, live)
		}
		out.States[o.Ref()] = state
	}
	return out, nil
}

// diffValues compares the planned values only.
func diffValues(o *translate.Object, live *unstructured.Unstructured) []Diff {
	have := map[string]any{}
	flatten("", chosen(live.Object), func(path string, value any) { have[path] = value })
	var diffs []Diff
	for _, v := range o.Values {
		before, found := have[v.Path]
		if finalizerOf(v) && hasFinalizer(live, v) {
			continue
		}
		if v.Generated && found || found && same(before, v.After) {
			continue
		}
		diffs = append(diffs, Diff{Path: v.Path, Before: before, After: v.After})
	}
	return diffs
}

// finalizerOf tells that a value is a finalizer. They are a set, of which others have theirs: only those that are planned are compared, wherever they are.
func finalizerOf(v translate.Value) bool { return strings.HasPrefix(v.Path, "metadata.finalizers[") }

func hasFinalizer(live *unstructured.Unstructured, v translate.Value) bool {
	name, ok := v.After.(string)
	return ok && slices.Contains(live.GetFinalizers(), name)
}

// Live compares by server-side dry-run apply: the server's own defaults, validation and admission have their say. Objects that
// exist are compared with the lists that were read before, so each object costs at most one request.
func Live(applier DryRunApplier, existing []unstructured.Unstructured, concurrency int) Comparer {
	return &live{applier: applier, existing: indexed(existing), concurrency: max(1, concurrency)}
}

type live struct {
	applier     DryRunApplier
	existing    map[string]*unstructured.Unstructured
	concurrency int
}

// substitute is where objects are tried whose namespace does not exist yet: every management cluster has it. Secrets are not tried
// there, because legacy Secrets of the same name live there.
const substitute = "default"

// Compare implements Comparer:
//
//  1. namespaces first, to know whether the others have a place to be tried in,
//  2. all other objects at once, within the concurrency,
//  3. answers and refusals in the order of the objects.
func (c *live) Compare(ctx context.Context, objects []*translate.Object) (Comparison, error) {
	out := Comparison{How: "server-side dry run", States: map[string]State{}}
	missing := map[string]bool{}
	var rest []*translate.Object
	for _, o := range objects {
		switch {
		case o.Phase == translate.PhaseFinalize:
		case o.GetKind() == "Namespace":
			answer, err := c.applier.DryRunApply(ctx, &o.Unstructured)
			if err != nil {
				out.Findings = append(out.Findings, refusal(o, err))
				continue
			}
			missing[o.GetName()] = answer.GetResourceVersion() == ""
			out.States[o.Ref()] = c.state(o, answer)
		default:
			rest = append(rest, o)
		}
	}
	for name, absent := range missing {
		if absent {
			out.How += fmt.Sprintf("; namespace %s does not exist yet, so objects were tried in %s and Secrets not at all", name, substitute)
		}
	}
	answers, errs := c.tryAll(ctx, rest, missing)
	if err := ctx.Err(); err != nil {
		return Comparison{}, fmt.Errorf("comparing with the management cluster: %w", err)
	}
	for i, o := range rest {
		switch {
		case errs[i] != nil:
			out.Findings = append(out.Findings, refusal(o, errs[i]))
		case answers[i] == nil:
			out.States[o.Ref()] = State{}
		default:
			out.States[o.Ref()] = c.state(o, answers[i])
		}
	}
	return out, nil
}

func (c *live) tryAll(ctx context.Context, objects []*translate.Object, missing map[string]bool) ([]*unstructured.Unstructured, []error) {
	answers, errs := make([]*unstructured.Unstructured, len(objects)), make([]error, len(objects))
	slots := make(chan struct{}, c.concurrency)
	var wait sync.WaitGroup
	for i, o := range objects {
		attempt := &o.Unstructured
		if missing[o.GetNamespace()] {
			if o.GetKind() == "Secret" {
				continue
			}
			attempt = o.DeepCopy()
			attempt.SetNamespace(substitute)
		}
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			if errs[i] = ctx.Err(); errs[i] == nil {
				answers[i], errs[i] = c.applier.DryRunApply(ctx, attempt)
			}
		})
	}
	wait.Wait()
	return answers, errs
}

// state compares the server's answer with what was listed. An object that does not exist has no resource version in the answer.
func (c *live) state(o *translate.Object, answer *unstructured.Unstructured) State {
	before, listed := c.existing[identity(&o.Unstructured)]
	if !listed {
		return State{Exists: answer.GetResourceVersion() != "" && answer.GetNamespace() == o.GetNamespace()}
	}
	have, want := map[string]any{}, map[string]any{}
	flatten("", chosen(before.Object), func(path string, value any) { have[path] = value })
	flatten("", chosen(answer.Object), func(path string, value any) { want[path] = value })
	generated := map[string]bool{}
	var diffs []Diff
	for _, v := range o.Values {
		generated[v.Path] = v.Generated
		if finalizerOf(v) && !hasFinalizer(before, v) {
			diffs = append(diffs, Diff{Path: v.Path, After: v.After})
		}
	}
	for path, after := range want {
		if earlier, found := have[path]; (!found || !same(earlier, after)) && (!generated[path] || !found) {
			diffs = append(diffs, Diff{Path: path, Before: earlier, After: after})
		}
	}
	for path, earlier := range have {
		if _, found := want[path]; !found {
			diffs = append(diffs, Diff{Path: path, Before: earlier})
		}
	}
	slices.SortFunc(diffs, func(a, b Diff) int { return strings.Compare(a.Path, b.Path) })
	return State{Exists: true, Diffs: diffs}
}

// chosen keeps what people set: no status, no bookkeeping.
func chosen(object map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range object {
		switch name {
		case "apiVersion", "kind", "status":
		case "metadata":
			metadata, _ := value.(map[string]any)
			kept := map[string]any{}
			for _, part := range []string{"labels", "annotations"} {
				if m, ok := metadata[part]; ok {
					kept[part] = m
				}
			}
			if len(kept) > 0 {
				out[name] = kept
			}
		default:
			out[name] = value
		}
	}
	return out
}

// flatten visits leaves with paths in the notation of translate.Value.
func flatten(path string, value any, visit func(path string, value any)) {
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 && path != "" {
			visit(path, v)
		}
		for name, item := range v {
			flatten(translate.Child(path, name), item, visit)
		}
	case []any:
		if len(v) == 0 {
			visit(path, v)
		}
		for i, item := range v {
			flatten(path+"["+strconv.Itoa(i)+"]", item, visit)
		}
	default:
		visit(path, value)
	}
}

// same compares two leaves; numbers are equal whatever their Go type.
func same(a, b any) bool {
	if x, ok := number(a); ok {
		if y, ok := number(b); ok {
			return x == y
		}
	}
	return reflect.DeepEqual(a, b)
}

func number(value any) (float64, bool) {
	switch v := value.(type) {
	case int64:
		return float64(v), true
	case int:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// refusal turns the API server's answer into a finding that names object and field.
func refusal(o *translate.Object, err error) finding.Finding {
	f := finding.Finding{ID: idRefused, Severity: finding.Block, Object: o.Ref(), Message: "the API server refuses the object: " + err.Error(), Hint: "correct the field it names in the legacy object"}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		if details := status.Status().Details; details != nil && len(details.Causes) > 0 {
			f.Path = details.Causes[0].Field
		}
	}
	switch {
	case apierrors.IsConflict(err):
		f.ID, f.Message = idConflict, "another field manager owns fields of the object: "+err.Error()
		f.Hint = "find out who manages the object; nothing is taken over by force"
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		f.ID, f.Message = idUnserved, "the management cluster does not serve this kind: "+err.Error()
		f.Hint = "install Cluster API and the KVM provider first"
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		f.ID, f.Severity = idForbidden, finding.Error
		f.Message, f.Hint = "the object could not be tried: "+err.Error(), "plan with an identity that may patch these kinds; a dry run needs the same permission as the real write"
	case !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err):
		f.Severity = finding.Error
		f.Message = "the object could not be tried: " + err.Error()
		f.Hint = "run the plan again"
	}
	return f
}
