package metrics

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The legacy operators export the same names, so that alerts on objects that nobody reconciles or that never go away keep working.
const (
	namespace = "operatorkit"
	subsystem = "controller"
)

// Timestamps are gauges of seconds since 1970, one series per object.
type Timestamps struct {
	clock clock.PassiveClock
	// filter is the value of the label cluster.x-k8s.io/watch-filter of the objects that this manager reconciles; empty: all.
	filter                      string
	created, deleted, reconcile *prometheus.GaugeVec
}

// New makes the gauges and registers them. Objects that another manager looks after, by the watch filter, have none: they would hide that it is gone.
func New(registry prometheus.Registerer, watchFilter string, clock clock.PassiveClock) (*Timestamps, error) {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help},
			[]string{"controller", "kind", "namespace", "name"})
	}
	t := &Timestamps{
		clock:     clock,
		filter:    watchFilter,
		created:   gauge("creation_timestamp", "When the object was created."),
		deleted:   gauge("deletion_timestamp", "When deletion of the object was asked for."),
		reconcile: gauge("last_reconciled", "When the object was last reconciled without an error."),
	}
	for _, vec := range []**prometheus.GaugeVec{&t.created, &t.deleted, &t.reconcile} {
		if err := register(registry, vec); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// register takes the gauge that is there already: the registry lasts as long as the process, a manager may not.
func register(registry prometheus.Registerer, vec **prometheus.GaugeVec) error {
	err := registry.Register(*vec)
	var known prometheus.AlreadyRegisteredError
	if errors.As(err, &known) {
		if existing, ok := known.ExistingCollector.(*prometheus.GaugeVec); ok {
			*vec = existing
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	return nil
}

// Wrap returns a reconciler that records the timestamps of what the inner one reconciles. Objects are read from reader, which
// should be a cache, into copies of like.
func (t *Timestamps) Wrap(kind string, like client.Object, reader client.Reader, inner reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		result, err := inner.Reconcile(ctx, request)
		if observeErr := t.observe(ctx, kind, like, reader, request, err == nil); observeErr != nil && err == nil {
			err = observeErr
		}
		return result, err
	})
}

func (t *Timestamps) observe(ctx context.Context, kind string, like client.Object, reader client.Reader, request reconcile.Request, fine bool) error {
	labels := []string{kind, kind, request.Namespace, request.Name}
	object, ok := like.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("recording metrics of %s %s: %T is no object", kind, request, like)
	}
	err := reader.Get(ctx, request.NamespacedName, object)
	if apierrors.IsNotFound(err) {
		for _, vec := range []*prometheus.GaugeVec{t.created, t.deleted, t.reconcile} {
			vec.DeleteLabelValues(labels...)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("recording metrics of %s %s: %w", kind, request, err)
	}
	if t.filter != "" && object.GetLabels()[clusterv1.WatchLabel] != t.filter {
		return nil
	}
	t.created.WithLabelValues(labels...).Set(float64(object.GetCreationTimestamp().Unix()))
	if at := object.GetDeletionTimestamp(); at != nil {
		t.deleted.WithLabelValues(labels...).Set(float64(at.Unix()))
	}
	if fine {
		t.reconcile.WithLabelValues(labels...).Set(float64(t.clock.Now().Unix()))
	}
	return nil
}
