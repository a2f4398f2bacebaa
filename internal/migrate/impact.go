package migrate

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pack"
)

// What was measured for the cluster's users: a migration has one report, whoever ran it on which night. What runs have measured that have ended is kept beside the evidence, and what one has measured that is at work
// goes with its log, whenever that is written, which costs no request. A run that is killed loses what it has measured since its last step began; the rest is kept by the next one, with its own.

// Measuring measures while a run is at work.
type Measuring interface {
	// SoFar tells what was measured until now.
	SoFar() *history.Impact
	// Stop ends the measuring and tells all of it.
	Stop() *history.Impact
}

// Keys of what was measured. They differ, because a bundle has the files of both ConfigMaps side by side.
const (
	impactKey = "impact.json.gz"
	soFarKey  = "impact-so-far.json.gz"
)

const (
	// maxImpact bounds what is unpacked, in bytes: thousands of namespaces and workloads.
	maxImpact = 8 << 20
	// maxSoFar bounds what goes with the log, packed: both together have to fit into a ConfigMap.
	maxSoFar = 128 << 10
)

// keptImpact is what runs have measured, as it is kept.
type keptImpact struct {
	history.Impact
	// Last says since when that was measured which was added last. It is added once, also when the answer was lost, or the run was killed that had just added it.
	Last time.Time `json:"last"`
}

// has tells that something was added already, or that there is nothing to add.
func (k *keptImpact) has(measured *history.Impact) bool {
	return measured == nil || k != nil && k.Last.Equal(measured.From)
}

// with is all of it, with what was measured later; nil when nothing was.
func (k *keptImpact) with(measured *history.Impact) *history.Impact {
	if k == nil {
		return measured
	}
	if k.has(measured) {
		return &k.Impact
	}
	return k.Then(measured)
}

// unpacked reads what was packed; nil when there is nothing.
func unpacked[T any](packed []byte) (*T, error) {
	if len(packed) == 0 {
		return nil, nil //nolint:nilnil // nobody has measured anything
	}
	text, err := pack.Open(packed, maxImpact)
	if err != nil {
		return nil, err
	}
	out := new(T)
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("reading what was unpacked: %w", err)
	}
	return out, nil
}

// loadKeptImpact reads what those runs have measured that have ended; nil when none has.
func loadKeptImpact(ctx context.Context, reader client.Reader, namespace, id string) (*keptImpact, error) {
	found, err := loadKept(ctx, reader, namespace, id)
	if err != nil {
		return nil, err
	}
	kept, err := unpacked[keptImpact](found[impactKey])
	if err != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %s: %w", namespace, id+EvidenceSuffix, impactKey, err)
	}
	return kept, nil
}

// LoadImpact reads what the runs of a migration have measured for the cluster's users, also one that is at work, or was killed; nil when none has.
func LoadImpact(ctx context.Context, reader client.Reader, namespace, id string) (*history.Impact, error) {
	kept, err := loadKeptImpact(ctx, reader, namespace, id)
	if err != nil {
		return nil, err
	}
	log := &corev1.ConfigMap{}
	err = reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: id + EventsSuffix}, log)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", namespace, id+EventsSuffix, err)
	}
	soFar, err := unpacked[history.Impact](log.BinaryData[soFarKey])
	if err != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %s: %w", namespace, id+EventsSuffix, soFarKey, err)
	}
	return kept.with(soFar), nil
}

// keepImpact adds what was measured to what is kept, and returns all of it.
func (w *Work) keepImpact(ctx context.Context, reader client.Reader, measured *history.Impact) (*history.Impact, error) {
	kept, err := loadKeptImpact(ctx, reader, w.namespace(), w.id())
	if err != nil {
		return measured, err
	}
	all := kept.with(measured)
	if kept.has(measured) {
		return all, nil
	}
	packed, err := pack.JSON(keptImpact{Impact: *all, Last: measured.From})
	if err != nil {
		return all, fmt.Errorf("keeping what was measured: %w", err)
	}
	return all, w.keep(ctx, map[string]any{impactKey: base64.StdEncoding.EncodeToString(packed)})
}

// takeUp takes over what a run has measured that was killed, unless it had just kept it. What cannot be read is told at the end, and keeps nobody from working.
func (e *Engine) takeUp(ctx context.Context) error {
	e.unfinished, e.unread = nil, nil
	unfinished, err := unpacked[history.Impact](e.Log.soFar)
	if err != nil {
		e.unread = fmt.Errorf("reading ConfigMap %s/%s: %s: %w", e.Work.namespace(), e.Work.id()+EventsSuffix, soFarKey, err)
		return nil
	}
	if unfinished == nil {
		return nil
	}
	kept, err := loadKeptImpact(ctx, e.Client, e.Work.namespace(), e.Work.id())
	if Passes(err) {
		return err
	}
	if !kept.has(unfinished) {
		e.unfinished = unfinished
	}
	return nil
}

// soFar is what goes with the log: what nobody has kept yet, of this run and of the one before it, if that was killed. Nothing when it is too large; the end of the run keeps it all the same.
func (e *Engine) soFar() []byte {
	if e.added {
		return nil
	}
	measured := e.unfinished
	if e.acted && e.opts.Measuring != nil {
		now := e.opts.Measuring.SoFar()
		now.Refused(e.refusedSoFar())
		measured = measured.Then(now)
	}
	if measured == nil {
		return nil
	}
	packed, err := pack.JSON(measured)
	if err != nil || len(packed) > maxSoFar {
		return nil
	}
	return packed
}

// refusals adds up how long evictions were refused.
func (e *Engine) refusals(namespaces map[string]time.Duration) {
	e.refusing.Lock()
	defer e.refusing.Unlock()
	if e.evictions == nil {
		e.evictions = map[string]time.Duration{}
	}
	for name, d := range namespaces {
		e.evictions[name] += d
	}
}

// refusedSoFar is how long they were refused until now.
func (e *Engine) refusedSoFar() map[string]time.Duration {
	e.refusing.Lock()
	defer e.refusing.Unlock()
	return maps.Clone(e.evictions)
}

// noticed ends the measuring, and keeps its result with that of earlier runs. A run that only looked was noticed by nobody, and most end before the cluster's pods are listed: that would be told of all runs ever after.
func (e *Engine) noticed(ctx context.Context, result Result) error {
	var measured *history.Impact
	if e.opts.Measuring != nil {
		measured = e.opts.Measuring.Stop()
		measured.Refused(e.refusedSoFar())
	}
	e.impact = measured
	if errors.Is(result.Err, ErrLockLost) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	err := e.retry(ctx, "", func(ctx context.Context) (err error) {
		if e.acted {
			e.impact, err = e.Work.keepImpact(ctx, e.Client, e.unfinished.Then(measured))
			return err
		}
		kept, err := loadKeptImpact(ctx, e.Client, e.Work.namespace(), e.Work.id())
		e.impact = kept.with(e.unfinished)
		return err
	})
	e.added = e.acted && err == nil
	return failure.Join(err, e.unread)
}
