package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
)

// Namespace is where legacy custom resources live: two of the operators have the name compiled in.
const Namespace = "default"

const (
	finalizerPrefix = "operatorkit.giantswarm.io/"
	// pausedByPlatform and pausedByClusterAPI stop operators built with a new operatorkit; the value has to be "true".
	pausedByPlatform   = "operatorkit.giantswarm.io/paused"
	pausedByClusterAPI = "cluster.x-k8s.io/paused"
)

// Options are what every operator works with.
type Options struct {
	Client client.Client
	// Version of the instance: it handles objects of exactly this version.
	Version string
	Clock   clock.WithTicker
	Log     logrus.FieldLogger
	// Faster divides the documented delays; 1 when zero.
	Faster int
}

func (o *Options) scaled(d time.Duration) time.Duration { return d / time.Duration(max(o.Faster, 1)) }

// Loop is something an operator does again and again.
type Loop struct {
	Name  string
	Every time.Duration
	Do    func(context.Context) error
}

// Run does all loops until ctx ends. A failure is logged and the loop tried again, as the real ones do.
func Run(ctx context.Context, c clock.WithTicker, log logrus.FieldLogger, loops ...Loop) {
	done := make(chan struct{})
	for _, l := range loops {
		go func() {
			defer func() { done <- struct{}{} }()
			l.run(ctx, c, log)
		}()
	}
	for range loops {
		<-done
	}
}

func (l Loop) run(ctx context.Context, c clock.WithTicker, log logrus.FieldLogger) {
	tick := c.NewTicker(l.Every)
	defer tick.Stop()
	for {
		if err := l.Do(ctx); err != nil && ctx.Err() == nil {
			log.WithError(err).WithField("loop", l.Name).Warn("a loop failed and is tried again")
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return
		}
	}
}

// paused says whether an object asks operators to leave it alone.
func paused(o client.Object) bool {
	notes := o.GetAnnotations()
	return notes[pausedByPlatform] == "true" || notes[pausedByClusterAPI] == "true"
}

func kind(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(desired.GVK(name))
	return o
}

// list returns the objects of a legacy kind.
func list(ctx context.Context, c client.Reader, name string, opts ...client.ListOption) ([]unstructured.Unstructured, error) {
	l := &unstructured.UnstructuredList{}
	gvk := desired.GVK(name)
	gvk.Kind += "List"
	l.SetGroupVersionKind(gvk)
	if err := c.List(ctx, l, opts...); err != nil {
		return nil, fmt.Errorf("listing objects of kind %s: %w", name, err)
	}
	return l.Items, nil
}

// each calls do for every object and joins the failures: one broken cluster must not stop the others.
func each(objects []unstructured.Unstructured, do func(*unstructured.Unstructured) error) error {
	var errs []error
	for i := range objects {
		if err := do(&objects[i]); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", objects[i].GetKind(), objects[i].GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// addFinalizer adds one by a patch that fails when somebody else changed the object.
func addFinalizer(ctx context.Context, c client.Client, o client.Object, names ...string) error {
	have := o.GetFinalizers()
	want := slices.Clone(have)
	for _, n := range names {
		if !slices.Contains(want, finalizerPrefix+n) {
			want = append(want, finalizerPrefix+n)
		}
	}
	return setFinalizers(ctx, c, o, have, want)
}

func removeFinalizer(ctx context.Context, c client.Client, o client.Object, names ...string) error {
	have := o.GetFinalizers()
	want := slices.DeleteFunc(slices.Clone(have), func(f string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return f == finalizerPrefix+n })
	})
	return setFinalizers(ctx, c, o, have, want)
}

func setFinalizers(ctx context.Context, c client.Client, o client.Object, have, want []string) error {
	if len(have) == len(want) {
		return nil
	}
	before, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return errors.New("changing finalizers: the object cannot be copied")
	}
	o.SetFinalizers(want)
	err := c.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err := client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("changing finalizers: %w", err)
	}
	return nil
}

func hasFinalizer(o client.Object, name string) bool {
	return slices.Contains(o.GetFinalizers(), finalizerPrefix+name)
}

// create creates what is missing and leaves alone what is there, whoever made it.
func create(ctx context.Context, c client.Client, o client.Object) (bool, error) {
	err := c.Create(ctx, o)
	if client.IgnoreAlreadyExists(err) != nil {
		return false, fmt.Errorf("creating %s: %w", client.ObjectKeyFromObject(o), err)
	}
	return err == nil, nil
}

// remove deletes an object that may be gone already.
func remove(ctx context.Context, c client.Client, o client.Object, opts ...client.DeleteOption) error {
	if err := client.IgnoreNotFound(c.Delete(ctx, o, opts...)); err != nil {
		return fmt.Errorf("deleting %s: %w", client.ObjectKeyFromObject(o), err)
	}
	return nil
}

// annotate sets an annotation.
func annotate(ctx context.Context, c client.Client, o client.Object, key, value string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
	if err := c.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("annotating %s: %w", client.ObjectKeyFromObject(o), err)
	}
	return nil
}
