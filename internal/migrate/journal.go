package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

// Journal keeps a ClusterMigration current: what a resumed run goes by. It is written before and after every step; one write says that
// the last step is done and the next one begins.
type Journal struct {
	Client client.Client
	Clock  clock.PassiveClock
	Gate   func(ctx context.Context) error
	// Labels are the legacy cluster's. A new ClusterMigration keeps them, so that they are known when the KVMConfig is gone.
	Labels map[string]string

	// Object is the ClusterMigration as it was last written or read.
	Object *migrationv1alpha1.ClusterMigration
}

// Read returns the ClusterMigration of a cluster; nil when there is none.
func Read(ctx context.Context, reader client.Reader, namespace, id string) (*migrationv1alpha1.ClusterMigration, error) {
	object := &migrationv1alpha1.ClusterMigration{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: id}, object)
	switch {
	case err == nil:
		return object, nil
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil, nil //nolint:nilnil // a cluster that nobody migrates is ordinary
	default:
		return nil, fmt.Errorf("reading ClusterMigration %s/%s: %w", namespace, id, err)
	}
}

// labelsAnnotation keeps the legacy cluster's labels.
const labelsAnnotation = "migration.giantswarm.io/cluster-labels"

// LabelsOf are the labels that the legacy cluster had when its migration began; nil where nobody has kept them.
func LabelsOf(object *migrationv1alpha1.ClusterMigration) map[string]string {
	var kept map[string]string
	if json.Unmarshal([]byte(object.Annotations[labelsAnnotation]), &kept) != nil {
		return nil
	}
	return kept
}

// open reads the ClusterMigration or makes it.
func (j *Journal) open(ctx context.Context, namespace, id string, accepted []migrationv1alpha1.Waiver) error {
	object, err := Read(ctx, j.Client, namespace, id)
	if err != nil {
		return err
	}
	if object == nil {
		object = &migrationv1alpha1.ClusterMigration{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: id, Labels: map[string]string{RecordLabel: id}},
			Spec:       migrationv1alpha1.ClusterMigrationSpec{ClusterID: id, Accepted: accepted},
		}
		labels, err := json.Marshal(j.Labels)
		if err != nil {
			return fmt.Errorf("keeping the labels of cluster %s: %w", id, err)
		}
		object.Annotations = map[string]string{labelsAnnotation: string(labels)}
		if err := j.Client.Create(ctx, object, client.FieldOwner(kube.FieldOwner)); err != nil {
			return fmt.Errorf("creating ClusterMigration %s/%s: %w", namespace, id, err)
		}
	}
	j.Object = object
	return nil
}

// heed takes over what people have written into the spec since the object was last read or written. The status stays this run's, unless a later run has written it.
func (j *Journal) heed(ctx context.Context) error {
	key := client.ObjectKeyFromObject(j.Object)
	fresh := &migrationv1alpha1.ClusterMigration{}
	if err := j.Client.Get(ctx, key, fresh); err != nil {
		return fmt.Errorf("reading ClusterMigration %s: %w", key, err)
	}
	return j.takeOver(fresh, &j.Object.Status)
}

// takeOver goes on with an object as somebody else has left it, and with this run's status.
func (j *Journal) takeOver(fresh *migrationv1alpha1.ClusterMigration, status *migrationv1alpha1.ClusterMigrationStatus) error {
	if fresh.Status.Run != nil && status.Run != nil && fresh.Status.Run.Token > status.Run.Token {
		return fmt.Errorf("writing ClusterMigration %s: %w: %w by %s", client.ObjectKeyFromObject(fresh), ErrLockLost, errFenced, fresh.Status.Run.By)
	}
	fresh.Status = *status.DeepCopy()
	j.Object = fresh
	return nil
}

// step returns the record of a step, which is made when there is none.
func (j *Journal) step(id string) *migrationv1alpha1.StepRecord {
	steps := &j.Object.Status.Steps
	i := slices.IndexFunc(*steps, func(s migrationv1alpha1.StepRecord) bool { return s.ID == id })
	if i < 0 {
		*steps = append(*steps, migrationv1alpha1.StepRecord{ID: id})
		i = len(*steps) - 1
	}
	return &(*steps)[i]
}

// stateOf is where a step stands; empty when it was never tried.
func (j *Journal) stateOf(id string) migrationv1alpha1.StepState {
	if j.Object == nil {
		return ""
	}
	for i := range j.Object.Status.Steps {
		if s := &j.Object.Status.Steps[i]; s.ID == id {
			return s.State
		}
	}
	return ""
}

// over tells of a step that is not run any more.
func over(state migrationv1alpha1.StepState) bool {
	return state == migrationv1alpha1.StepDone || state == migrationv1alpha1.StepSkipped
}

// tried tells that a step was begun and not taken back.
func (j *Journal) tried(id string) bool {
	state := j.stateOf(id)
	return state != "" && state != migrationv1alpha1.StepUndone
}

// notBegun tells of a step in which nothing was done, and nothing taken back: it was refused before it began, or its drain was given up. Only such a record says why it is undone;
// that of a worker may be one of before, but no worker is ever taken back.
func notBegun(s *migrationv1alpha1.StepRecord) bool {
	return s.State == migrationv1alpha1.StepUndone && (s.Message != "" || plan.ReplacesWorker(s.ID))
}

// doneAt is when a step was done; zero when it was not.
func (j *Journal) doneAt(id string) time.Time {
	for i := range j.Object.Status.Steps {
		if s := &j.Object.Status.Steps[i]; s.ID == id && over(s.State) && s.FinishedAt != nil {
			return s.FinishedAt.Time
		}
	}
	return time.Time{}
}

// startedAt is when a step was begun the last time; zero when it was not, or when nobody noted it.
func (j *Journal) startedAt(id string) time.Time {
	for i := range j.Object.Status.Steps {
		if s := &j.Object.Status.Steps[i]; s.ID == id {
			return timeOf(s.StartedAt)
		}
	}
	return time.Time{}
}

// Retired are the names of the pods of legacy machines that the migration has replaced, or is just replacing.
func Retired(object *migrationv1alpha1.ClusterMigration, record *adopt.Record) []string {
	return podsFrom(object, record, stepRetire)
}

// podsFrom are the names of the pods of those legacy machines whose step was begun; master is the legacy master's.
func podsFrom(object *migrationv1alpha1.ClusterMigration, record *adopt.Record, master string) []string {
	if record == nil {
		return nil
	}
	var names []string
	for _, pod := range record.Originals("Pod") {
		step := master
		if role, id := legacy.PartOf(pod); role == legacy.Worker {
			step = replacement(id)
		}
		if anyStep(object, func(id string) bool { return id == step }) {
			names = append(names, pod.GetName())
		}
	}
	return names
}

// RemovedBy is what a migration has taken away, or is just taking away. The legacy master's pod may be gone as soon as its etcd may be: somebody ends a VM that would come
// again empty, and a run that goes on has to know it all the same. A worker whose host is lost once there is no way back still has a Machine that is to be replaced: nobody makes
// its pod again.
func RemovedBy(object *migrationv1alpha1.ClusterMigration, record *adopt.Record) adopt.Removed {
	pods := podsFrom(object, record, stepLeave)
	if record != nil && anyStep(object, func(id string) bool { return id == stepRetire }) {
		for _, pod := range record.Originals("Pod") {
			if role, _ := legacy.PartOf(pod); role == legacy.Worker && !slices.Contains(pods, pod.GetName()) {
				pods = append(pods, pod.GetName())
			}
		}
	}
	return adopt.Removed{Pods: pods, Configs: Begun(object, plan.PhaseFinalize)}
}

// CourseOf is what a migration has done to machines and etcd, for the proof.
func CourseOf(object *migrationv1alpha1.ClusterMigration, record *adopt.Record) proof.Course {
	if object == nil {
		return proof.Course{}
	}
	return proof.Course{
		Elections: int(object.Status.Elections), TwoMembers: object.Status.TwoMembersSince != nil, Retired: Retired(object, record),
		Replacing: Begun(object, plan.PhaseControlPlane),
	}
}

// Started tells that something of a migration may have happened that was not taken back; an object that is nil has not.
func Started(object *migrationv1alpha1.ClusterMigration) bool {
	return anyStep(object, func(string) bool { return true })
}

// Begun tells that some step of a phase was begun and not taken back.
func Begun(object *migrationv1alpha1.ClusterMigration, phase string) bool {
	return anyStep(object, func(id string) bool { return strings.HasPrefix(id, phase+"/") })
}

// Replacing tells that the replacement of machines has begun: more of phase control-plane was tried than steps that only look.
func Replacing(object *migrationv1alpha1.ClusterMigration) bool {
	phases := Graph()
	at := slices.IndexFunc(phases, func(p Phase) bool { return p.Name == plan.PhaseControlPlane })
	return anyStep(object, func(id string) bool {
		return slices.ContainsFunc(phases[at].Steps, func(s Step) bool { return s.ID == id && !s.Looks })
	})
}

// Exposed tells that etcd needs both control planes: the new machine's member votes, or may, and the legacy one has not left, as far as it is known without looking. So it may be
// while more control planes come: of two, both are needed until there is a third.
func Exposed(object *migrationv1alpha1.ClusterMigration) bool {
	j := &Journal{Object: object}
	return j.tried(stepPromote) && !Left(object) || j.tried(stepGrow) && !over(j.stateOf(stepGrow))
}

// Left tells that the legacy member is not part of etcd any more: its step is over, or a run has seen that it is gone and did not end the step.
func Left(object *migrationv1alpha1.ClusterMigration) bool {
	j := &Journal{Object: object}
	if !j.tried(stepLeave) {
		return false
	}
	return over(j.stateOf(stepLeave)) || object.Status.TwoMembersSince != nil && object.Status.TwoMembersUntil != nil
}

// changed tells that the cluster itself may have been changed: all steps but those that only look and record.
func changed(object *migrationv1alpha1.ClusterMigration) bool {
	return anyStep(object, func(id string) bool { return id != stepRecord && id != stepEvidence })
}

// anyStep tells that one of the steps was begun and not taken back.
func anyStep(object *migrationv1alpha1.ClusterMigration, counts func(id string) bool) bool {
	return object != nil && slices.ContainsFunc(object.Status.Steps, func(s migrationv1alpha1.StepRecord) bool {
		return s.State != migrationv1alpha1.StepUndone && counts(s.ID)
	})
}

func (j *Journal) now() *metav1.Time { return secondOf(j.Clock.Now()) }

// secondOf is the beginning of the second of an instant: the API keeps no more.
func secondOf(at time.Time) *metav1.Time { return new(metav1.NewTime(at.UTC().Truncate(time.Second))) }

// soon is the end of this second, as now is its beginning: what is between the two lasted that long at most.
func (j *Journal) soon() *metav1.Time {
	soon := metav1.NewTime(j.Clock.Now().UTC().Add(time.Second - 1).Truncate(time.Second))
	return &soon
}

// begin notes that a step is about to be tried, or taken back.
func (j *Journal) begin(phase string, s Step, state migrationv1alpha1.StepState) {
	record := j.step(s.ID)
	// Taking back is counted and timed by itself, and so is a step that is done again afterwards.
	turned := state == migrationv1alpha1.StepUndoing && record.State != migrationv1alpha1.StepUndoing
	if turned || record.State == migrationv1alpha1.StepUndone {
		*record = migrationv1alpha1.StepRecord{ID: s.ID}
	}
	if record.StartedAt == nil {
		record.StartedAt = j.now()
	}
	record.State, record.FinishedAt, record.Message = state, nil, ""
	j.countRun(record)
	record.Attempts++
	j.Object.Status.Phase, j.Object.Status.Step = phase, s.ID
	j.Object.Status.Message = s.Title
	if state == migrationv1alpha1.StepUndoing {
		j.Object.Status.Message = "taking back: " + s.Title
	}
}

// countRun counts this run among those that have tried a step. A record of an earlier version does not say which runs there were, so all of them are one.
func (j *Journal) countRun(record *migrationv1alpha1.StepRecord) {
	if record.Attempts > 0 && record.Runs == 0 {
		record.Runs = 1
	}
	if run := j.Object.Status.Run; run != nil && record.Run != run.ID {
		record.Run = run.ID
		record.Runs++
	}
}

// end notes how a try ended.
func (j *Journal) end(s Step, state migrationv1alpha1.StepState, message string) {
	record := j.step(s.ID)
	record.State, record.FinishedAt, record.Message = state, j.now(), limited(message)
	if s.Condition == "" {
		return
	}
	condition := metav1.Condition{Type: s.Condition, ObservedGeneration: j.Object.Generation, Message: limited(message)}
	switch state {
	case migrationv1alpha1.StepDone:
		condition.Status, condition.Reason = metav1.ConditionTrue, "Done"
	case migrationv1alpha1.StepUndone:
		if condition.Status, condition.Reason = metav1.ConditionFalse, "TakenBack"; notBegun(record) {
			condition.Reason = "NotBegun"
		}
	case migrationv1alpha1.StepFailed:
		condition.Status, condition.Reason = metav1.ConditionFalse, "Failed"
	case migrationv1alpha1.StepSkipped:
		return // Nobody has looked whether it holds.
	case migrationv1alpha1.StepRunning, migrationv1alpha1.StepUndoing:
		condition.Status, condition.Reason = metav1.ConditionUnknown, "Running"
	}
	meta.SetStatusCondition(&j.Object.Status.Conditions, condition)
}

// proof notes the outcome of the proof. One that could not read everything proves nothing, and the condition says so.
func (j *Journal) proof(p *proof.Proof) {
	j.Object.Status.Proof, j.Object.Status.ProvedAt = string(p.Outcome), j.now()
	if p.Outcome == proof.Incomplete {
		meta.SetStatusCondition(&j.Object.Status.Conditions, metav1.Condition{
			Type: migrationv1alpha1.UntouchedCondition, Status: metav1.ConditionUnknown, Reason: "Incomplete", ObservedGeneration: j.Object.Generation,
			Message: "not everything could be read; migrate proof says what is missing",
		})
	}
}

// summarize sets the conditions by which tools wait that know nothing of migrations.
func (j *Journal) summarize() {
	status := &j.Object.Status
	set := func(kind string, is bool) {
		condition := metav1.Condition{
			Type: kind, Status: metav1.ConditionFalse, Reason: string(status.State), Message: status.Message, ObservedGeneration: j.Object.Generation, LastTransitionTime: *j.now(),
		}
		if is {
			condition.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if status.State == "" {
		return
	}
	set(migrationv1alpha1.ReadyCondition, status.State == migrationv1alpha1.StateReached || status.State == migrationv1alpha1.StateRolledBack)
	set(migrationv1alpha1.ReconcilingCondition, atWork(j.Object))
	set(migrationv1alpha1.StalledCondition, status.State == migrationv1alpha1.StateFailed)
}

// reasonKilled is that of the condition Reconciling of a migration whose run was killed. Nobody was left to write it, so it is in no cluster.
const reasonKilled = "Killed"

// MarkKilled has the copy of a migration that was read say what nobody was left to write: that nobody works on it.
func MarkKilled(object *migrationv1alpha1.ClusterMigration, since time.Time) {
	message := "nobody works on it: the run lock was last renewed at " + since.UTC().Format(time.RFC3339) + ", so the run was killed or its machine is away"
	if run := object.Status.Run; run != nil {
		message = "nobody works on it: " + run.By + " last renewed the run lock at " + since.UTC().Format(time.RFC3339) + ", so that run was killed or its machine is away"
	}
	meta.SetStatusCondition(&object.Status.Conditions, metav1.Condition{
		Type: migrationv1alpha1.ReconcilingCondition, Status: metav1.ConditionFalse, Reason: reasonKilled, Message: message,
		ObservedGeneration: object.Generation, LastTransitionTime: metav1.NewTime(since.Truncate(time.Second)),
	})
}

// Killed says of a migration that was marked that nobody works on it; empty when somebody does, or none is said to.
func Killed(object *migrationv1alpha1.ClusterMigration) string {
	condition := meta.FindStatusCondition(object.Status.Conditions, migrationv1alpha1.ReconcilingCondition)
	if condition == nil || condition.Reason != reasonKilled || !atWork(object) {
		return ""
	}
	return condition.Message
}

// maxMessage is what the API takes.
const maxMessage = 4096

func limited(message string) string { return Clip(message, maxMessage) }

// Clip cuts a text to so many bytes, between two characters: the API server refuses what is longer than its definition says, and keeps half a character as another one.
func Clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len("…")], "") + "…"
}

// errFenced means that a later run has written: this one's lock is somebody else's.
var errFenced = errors.New("a later run has written the journal")

// save writes the status. Others may have changed the spec meanwhile, to pause the run: then the spec is theirs and the status is this
// run's, unless a later run has written it.
func (j *Journal) save(ctx context.Context) error {
	key := client.ObjectKeyFromObject(j.Object)
	if err := j.Gate(ctx); err != nil {
		return fmt.Errorf("writing ClusterMigration %s: %w", key, err)
	}
	j.summarize()
	status := j.Object.Status.DeepCopy()
	err := j.Client.Status().Update(ctx, j.Object, client.FieldOwner(kube.FieldOwner))
	for apierrors.IsConflict(err) {
		fresh := &migrationv1alpha1.ClusterMigration{}
		if err := j.Client.Get(ctx, key, fresh); err != nil {
			return fmt.Errorf("reading ClusterMigration %s: %w", key, err)
		}
		if err := j.takeOver(fresh, status); err != nil {
			return err
		}
		err = j.Client.Status().Update(ctx, j.Object, client.FieldOwner(kube.FieldOwner))
	}
	if err != nil {
		// What was to be written is kept for the next try.
		j.Object.Status = *status
		return fmt.Errorf("writing ClusterMigration %s: %w", key, err)
	}
	return nil
}
