package migrate

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finalize"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/roll"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// Work is what the steps of one cluster share.
type Work struct {
	// Adopter does the work of the phases up to adopt.
	Adopter *adopt.Adopter
	// Roller does the work of the phases that replace machines; when it is nil, NoRoller says why it cannot.
	Roller   *roll.Roller
	NoRoller error
	// Finalizer does the work of the last phase.
	Finalizer *finalize.Finalizer
	// Sources are where evidence comes from; they restart nothing.
	Sources proof.Sources
	// SettleFor is how long nobody else may write.
	SettleFor time.Duration
	// Tool is the program's version, By who runs it.
	Tool, By string
	Clock    clock.WithTicker
	// Authority says where the private key of the cluster's CA was read; empty when it was not given to this run.
	Authority string

	// Note hears what belongs into the log of the migration.
	Note func(sentence string)
	// Exposed hears that the private key of the cluster's CA is in the management cluster now.
	Exposed func()
	// PutOff lets pods come to a worker again whose drain was given up.
	PutOff func(ctx context.Context, worker string) error
	// Course is what the migration has done to machines and etcd so far.
	Course func() proof.Course
	// Proof is what the proof step found, for the report.
	Proof *proof.Proof
}

// Names of the objects a migration keeps beside its ClusterMigration.
const (
	recordSuffix = "-migration-record"
	// EvidenceSuffix and EventsSuffix are those of ConfigMaps without secrets.
	EvidenceSuffix = "-migration-evidence"
	EventsSuffix   = "-migration-events"
	lockSuffix     = "-migration"

	// Steps that others ask about.
	stepPromote = "control-plane/promote"
	stepLeave   = "control-plane/leave"
	stepRetire  = "control-plane/retire"
	stepRefer   = "control-plane/refer"
	stepGrow    = "control-plane/grow"
	stepSettled = "workers/settled"

	// The steps that change nothing of the cluster.
	stepRecord   = "fence/record"
	stepEvidence = "fence/evidence"

	recordKey  = "record.json.gz"
	beforeKey  = "before.json.gz"
	afterKey   = "after.json.gz"
	recordType = "migration.giantswarm.io/record"
)

func (w *Work) id() string        { return w.Adopter.Picture.ID }
func (w *Work) namespace() string { return w.Adopter.Result.Namespace }

// own makes an object that the migration keeps for itself.
func (w *Work) own(kind, suffix string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion("v1")
	o.SetKind(kind)
	o.SetNamespace(w.namespace())
	o.SetName(w.id() + suffix)
	o.SetLabels(map[string]string{RecordLabel: w.id()})
	return o
}

// RecordLabel is on everything a migration keeps for itself. It differs from the label of what it makes, which an undo removes.
const RecordLabel = "migration.giantswarm.io/record-of"

// record stores the originals, once: a record that is there was made before anything changed and is never made again.
func record(ctx context.Context, w *Work) error {
	if found, err := LoadRecord(ctx, w.Adopter.Management.Client, w.namespace(), w.id()); err != nil || found != nil {
		return err
	}
	packed, err := w.Adopter.Record.Encode()
	if err != nil {
		return err
	}
	o := w.own("Secret", recordSuffix)
	o.Object["type"] = recordType
	o.Object["immutable"] = true
	o.Object["data"] = map[string]any{recordKey: base64.StdEncoding.EncodeToString(packed)}
	_, err = w.Adopter.Management.Writer.Create(ctx, o)
	return client.IgnoreAlreadyExists(err)
}

func verifyRecord(ctx context.Context, w *Work) error {
	found, err := LoadRecord(ctx, w.Adopter.Management.Client, w.namespace(), w.id())
	if err == nil && found == nil {
		err = fmt.Errorf("verifying Secret %s/%s: it is not there", w.namespace(), w.id()+recordSuffix)
	}
	return err
}

// LoadRecord reads the record of a cluster's migration; nil when there is none.
func LoadRecord(ctx context.Context, reader client.Reader, namespace, id string) (*adopt.Record, error) {
	secret := &corev1.Secret{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: id + recordSuffix}, secret)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return nil, fmt.Errorf("reading Secret %s/%s: %w", namespace, id+recordSuffix, err)
	case err != nil:
		return nil, nil //nolint:nilnil,nilerr // no record is an ordinary answer
	}
	return adopt.DecodeRecord(secret.Data[recordKey], id)
}

// forget removes the record: everything in it is back where it was.
func forget(ctx context.Context, w *Work) error {
	o := w.own("Secret", recordSuffix)
	err := w.Adopter.Management.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	return w.Adopter.Management.Writer.Delete(ctx, kube.TargetOf(o), metav1.DeletePropagationBackground)
}

// evidence looks at everything once before the first change, and keeps what it saw. Evidence from before the record is that of an earlier
// migration, which was taken back.
func evidence(ctx context.Context, w *Work) error {
	found, err := LoadEvidence(ctx, w.Adopter.Management.Client, w.namespace(), w.id())
	if err != nil {
		return err
	}
	if found != nil && !found.Metadata.CollectedAt.Before(w.Adopter.Record.MadeAt.Truncate(time.Second)) {
		return nil
	}
	seen, err := w.look(ctx)
	if err != nil {
		return err
	}
	if lacks := unread(seen); lacks != "" && w.Note != nil {
		w.Note("the first look lacks " + lacks + ": no later one can prove that it stayed as it was; after migrate rollback " + w.id() + " the next run looks anew")
	}
	return w.keepEvidence(ctx, beforeKey, seen)
}

// mostUnread is how many facts a note names.
const mostUnread = 5

// unread names what a look could not read; empty for nothing.
func unread(seen *proof.Evidence) string {
	var facts []string
	// Of what is compared with itself, all is the same that was read; but the two looks have no order.
	for _, subject := range proof.Compare(seen, seen).Subjects {
		for _, fact := range subject.Facts {
			switch {
			case fact.Result != proof.Unknown || subject.Kind == proof.SubjectEvidence:
			case subject.Name == "":
				facts = append(facts, fact.Name)
			default:
				facts = append(facts, fmt.Sprintf("%s %s: %s", subject.Kind, subject.Name, fact.Name))
			}
		}
	}
	if more := len(facts) - mostUnread; more > 0 {
		facts = append(facts[:mostUnread], fmt.Sprintf("%d more", more))
	}
	return strings.Join(facts, ", ")
}

func (w *Work) look(ctx context.Context) (*proof.Evidence, error) {
	course := proof.Course{}
	if w.Course != nil {
		course = w.Course()
	}
	return proof.Collect(ctx, w.Sources, proof.Options{Cluster: w.id(), Tool: w.Tool, Clock: w.Clock, Course: course})
}

// keepEvidence keeps what was seen. What an earlier migration saw and measured, which was taken back, goes with the first look of the next.
func (w *Work) keepEvidence(ctx context.Context, key string, seen *proof.Evidence) error {
	packed, err := seen.Pack()
	if err != nil {
		return err
	}
	data := map[string]any{key: base64.StdEncoding.EncodeToString(packed)}
	if key == beforeKey {
		data[afterKey], data[impactKey] = nil, nil
	}
	return w.keep(ctx, data)
}

// keep writes keys of the ConfigMap of what was seen; nil removes one.
func (w *Work) keep(ctx context.Context, data map[string]any) error {
	o := w.own("ConfigMap", EvidenceSuffix)
	err := w.Adopter.Management.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
	switch {
	case err == nil:
		return w.Adopter.Management.Writer.Merge(ctx, kube.TargetOf(o), map[string]any{"binaryData": data})
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("reading ConfigMap %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	maps.DeleteFunc(data, func(_ string, value any) bool { return value == nil })
	o.Object["binaryData"] = data
	_, err = w.Adopter.Management.Writer.Create(ctx, o)
	return err
}

// LoadEvidence reads what was seen before the first change; nil when there is none.
func LoadEvidence(ctx context.Context, reader client.Reader, namespace, id string) (*proof.Evidence, error) {
	kept, err := loadKept(ctx, reader, namespace, id)
	if err != nil || len(kept[beforeKey]) == 0 {
		return nil, err
	}
	text, err := proof.Unpack(kept[beforeKey])
	if err != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", namespace, id+EvidenceSuffix, err)
	}
	return proof.ReadEvidence(text)
}

// loadKept reads the ConfigMap of what was seen; nil when there is none.
func loadKept(ctx context.Context, reader client.Reader, namespace, id string) (map[string][]byte, error) {
	kept := &corev1.ConfigMap{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: id + EvidenceSuffix}, kept)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", namespace, id+EvidenceSuffix, err)
	}
	return kept.BinaryData, nil
}

// undisturbed refuses to begin when the pods are not the ones that were planned with.
func undisturbed(ctx context.Context, w *Work) error { return w.Adopter.VerifyPods(ctx) }

// stillFenced looks at the fence again before a step that an active operator would answer.
func stillFenced(ctx context.Context, w *Work) error {
	if err := w.Adopter.VerifyFence(ctx); err != nil {
		return err
	}
	return w.Adopter.VerifyPods(ctx)
}

// unless leaves out a look when it is known that there is nothing left to look at.
func unless(over func(context.Context, *Work) (bool, error), look func(context.Context, *Work) error) func(context.Context, *Work) error {
	return func(ctx context.Context, w *Work) error {
		if is, err := over(ctx, w); err == nil && is {
			return nil
		}
		return look(ctx, w)
	}
}

func settle(ctx context.Context, w *Work) error { return w.Adopter.Settle(ctx, w.SettleFor) }

// crossed looks whether the legacy member has left etcd.
func crossed(ctx context.Context, w *Work) (bool, error) {
	if w.Roller == nil {
		return false, w.NoRoller
	}
	return w.Roller.Left(ctx)
}

// ErrTouched means that the proof failed: something was restarted or replaced that had to stay as it was.
var ErrTouched = errors.New("the cluster was touched")

// prove looks again and compares.
func prove(ctx context.Context, w *Work) error {
	before, err := LoadEvidence(ctx, w.Adopter.Management.Client, w.namespace(), w.id())
	if err != nil {
		return err
	}
	if before == nil {
		return fmt.Errorf("%w: there is no evidence from before the first change", ErrTouched)
	}
	after, err := w.look(ctx)
	if err != nil {
		return err
	}
	w.Proof = proof.Compare(before, after)
	if err := w.keepEvidence(ctx, afterKey, after); err != nil {
		return err
	}
	if w.Proof.Outcome == proof.Touched {
		return fmt.Errorf("%w: %s", ErrTouched, culprits(w.Proof))
	}
	return nil
}

// culprits are the changed facts, a sentence each.
func culprits(p *proof.Proof) string {
	text := ""
	for _, subject := range p.Subjects {
		for _, fact := range subject.Facts {
			if fact.Result != proof.Changed {
				continue
			}
			if text != "" {
				text += "; "
			}
			text += strings.TrimSpace(string(subject.Kind)+" "+subject.Name) + ": " + fact.Meaning
		}
	}
	return text
}

// comparisonsAtOnce bounds the dry runs of the last step.
const comparisonsAtOnce = 16

// ErrNotLocked means that the adopted cluster differs from the plan.
var ErrNotLocked = errors.New("the adopted cluster differs from what was planned")

// locked compares every object as it is wanted now with what is there, by server-side dry run.
func locked(ctx context.Context, w *Work) error {
	var wanted []*translate.Object
	for _, o := range w.Adopter.Result.Objects {
		if o.Phase == translate.PhaseTranslate || o.Phase == translate.PhaseAdopt {
			free := *o
			free.Unstructured = *adopt.AtStage(&o.Unstructured, adopt.MachinesFree)
			wanted = append(wanted, &free)
		}
	}
	live, err := w.Adopter.Existing(ctx)
	if err != nil {
		return err
	}
	comparison, err := plan.Live(w.Adopter.DryRun, live, comparisonsAtOnce).Compare(ctx, wanted)
	if err != nil {
		return err
	}
	for _, f := range comparison.Findings {
		return fmt.Errorf("%w: %s", ErrNotLocked, f.Message)
	}
	for _, o := range wanted {
		state, compared := comparison.States[o.Ref()]
		switch {
		case !compared:
			return fmt.Errorf("%w: %s could not be compared", ErrNotLocked, o.Ref())
		case !state.Exists:
			return fmt.Errorf("%w: %s is not there", ErrNotLocked, o.Ref())
		case len(state.Diffs) > 0:
			return fmt.Errorf("%w: %s differs in %s", ErrNotLocked, o.Ref(), state.Diffs[0].Path)
		}
	}
	return w.Adopter.VerifyFence(ctx)
}
