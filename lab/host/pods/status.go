package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"
)

// publish patches the status if it differs from what the API has. It says whether the API knows the status now, or the pod no more.
//
// The patch holds only what changed, list entries by their key: a readiness gate that somebody sets meanwhile is not lost. It holds the
// UID, so that it never lands on a younger pod of the same name.
func (w *worker) publish(ctx context.Context) bool {
	base := w.pod
	fresh := base.DeepCopy()
	w.fill(fresh)
	patch, err := statusPatch(base, fresh)
	if err != nil {
		w.log.WithError(err).Error("the status cannot be published")
		return true
	}
	if patch == nil {
		return true
	}
	got, err := w.opts.Client.CoreV1().Pods(w.namespace).Patch(ctx, w.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case err == nil:
		w.mu.Lock()
		if newer(got, w.latest) {
			w.latest = got
		}
		w.mu.Unlock()
		w.pod = got
		return true
	case apierrors.IsNotFound(err), apierrors.IsConflict(err) && uidDiffers(err):
		return true
	default:
		w.log.WithError(err).Warn("the status was not published, trying again")
		w.retry("status")
		return false
	}
}

// uidDiffers recognises that the name belongs to another pod by now.
func uidDiffers(err error) bool {
	return strings.Contains(err.Error(), "UID") || strings.Contains(err.Error(), "uid")
}

func statusPatch(base, fresh *corev1.Pod) ([]byte, error) {
	before, err := json.Marshal(corev1.Pod{Status: base.Status})
	if err != nil {
		return nil, fmt.Errorf("encoding a status: %w", err)
	}
	after, err := json.Marshal(corev1.Pod{Status: fresh.Status})
	if err != nil {
		return nil, fmt.Errorf("encoding a status: %w", err)
	}
	raw, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("comparing statuses: %w", err)
	}
	patch := map[string]any{}
	if err := json.Unmarshal(raw, &patch); err != nil {
		return nil, fmt.Errorf("comparing statuses: %w", err)
	}
	if len(patch) == 0 {
		return nil, nil
	}
	patch["metadata"] = map[string]any{"uid": base.UID}
	raw, err = json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encoding a patch: %w", err)
	}
	return raw, nil
}

// release lets the pod's object go, which is the kubelet's part of every deletion.
func (w *worker) release(ctx context.Context) bool {
	err := w.opts.Client.CoreV1().Pods(w.namespace).Delete(ctx, w.name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(w.uid)),
	})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return true
	}
	w.log.WithError(err).Warn("the pod's object was not deleted, trying again")
	w.retry("release")
	return false
}

// fill writes the status.
func (w *worker) fill(pod *corev1.Pod) {
	s := &pod.Status
	now := metav1.NewTime(w.opts.Clock.Now()).Rfc3339Copy()
	if s.StartTime == nil {
		s.StartTime = &now
	}
	s.ObservedGeneration = pod.Generation
	s.HostIP = w.opts.HostAddress.String()
	s.HostIPs = []corev1.HostIP{{IP: s.HostIP}}
	if w.address.IsValid() {
		s.PodIP = w.address.String()
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
	over := w.retired || terminal(pod)
	s.InitContainerStatuses = w.statuses(w.init, over)
	s.ContainerStatuses = w.statuses(w.apps, over)
	if !terminal(pod) {
		s.Phase = w.phase(s.ContainerStatuses, over)
		if w.failure != nil && s.Phase == corev1.PodFailed {
			s.Reason, s.Message = w.failure.reason, w.failure.message
		}
	}
	for _, c := range w.conditions(pod) {
		setCondition(s, c, now, pod.Generation)
	}
}

func (w *worker) statuses(units []*unit, over bool) []corev1.ContainerStatus {
	if len(units) == 0 {
		return nil
	}
	all := make([]corev1.ContainerStatus, 0, len(units))
	for _, u := range units {
		s := corev1.ContainerStatus{
			Name: u.spec.Name, State: u.state, LastTerminationState: u.last, Ready: u.ready && u.run != nil, RestartCount: u.restarts,
			Image: u.spec.Image, ImageID: u.imageID, ContainerID: u.id, Started: new(u.started && u.run != nil),
		}
		if u.init && !u.sidecar() {
			s.Ready = u.succeeded()
		}
		switch {
		case s.State.Waiting == nil:
		case over && u.last.Terminated != nil:
			s.State, s.LastTerminationState = u.last, corev1.ContainerState{}
		case u.waitsFor(reasonCreating) && w.waitsForInit(u):
			s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reasonInitializing}}
		}
		all = append(all, s)
	}
	return all
}

func (w *worker) waitsForInit(u *unit) bool { return !u.init && len(w.init) > 0 && !w.initialized }

// phase sums up the containers. Sidecars do not count.
func (w *worker) phase(apps []corev1.ContainerStatus, over bool) corev1.PodPhase {
	n := count(apps)
	policy := w.pod.Spec.RestartPolicy
	switch {
	case w.failure != nil && !w.anyRunning():
		return corev1.PodFailed
	case over && n.succeeded == len(apps):
		return corev1.PodSucceeded
	case over:
		return corev1.PodFailed
	case n.waiting > 0 || (len(w.init) > 0 && !w.initialized && n.running == 0):
		return corev1.PodPending
	case n.running > 0 || policy == corev1.RestartPolicyAlways:
		return corev1.PodRunning
	case n.stopped == n.succeeded:
		return corev1.PodSucceeded
	case policy == corev1.RestartPolicyNever:
		return corev1.PodFailed
	default:
		return corev1.PodRunning
	}
}

// tally counts containers by state. One that waits to be restarted counts as stopped.
type tally struct{ waiting, running, stopped, succeeded int }

func count(all []corev1.ContainerStatus) tally {
	var n tally
	for i := range all {
		s := &all[i]
		switch {
		case s.State.Running != nil:
			n.running++
		case s.State.Terminated != nil:
			n.stopped++
			if s.State.Terminated.ExitCode == 0 {
				n.succeeded++
			}
		case s.LastTerminationState.Terminated != nil:
			n.stopped++
		default:
			n.waiting++
		}
	}
	return n
}

func (w *worker) anyRunning() bool {
	return slices.ContainsFunc(w.units(), func(u *unit) bool { return u.run != nil })
}

// conditions are those a kubelet owns. Everybody else's are left alone.
func (w *worker) conditions(pod *corev1.Pod) []corev1.PodCondition {
	done := pod.Status.Phase == corev1.PodSucceeded
	initialized := condition(corev1.PodInitialized, w.initialized || len(w.init) == 0 || done, "ContainersNotInitialized", "")
	if initialized.Status != corev1.ConditionTrue {
		initialized.Message = unready("incomplete", w.init, func(u *unit) bool { return u.succeeded() || u.started })
	}
	containers := w.containersReady(pod.Status.Phase)
	ready := containers
	ready.Type = corev1.PodReady
	if missing := openGates(pod); ready.Status == corev1.ConditionTrue && len(missing) > 0 {
		ready = condition(corev1.PodReady, false, "ReadinessGatesNotReady", strings.Join(missing, ", "))
	}
	return []corev1.PodCondition{
		condition(corev1.PodReadyToStartContainers, (w.sandbox != nil || pod.Spec.HostNetwork) && !w.retired && w.address.IsValid(), "", ""),
		initialized, ready, containers, condition(corev1.PodScheduled, true, "", ""),
	}
}

// containersReady counts sidecars in.
func (w *worker) containersReady(phase corev1.PodPhase) corev1.PodCondition {
	isReady := func(u *unit) bool { return u.ready && u.run != nil }
	serving := slices.Clone(w.apps)
	for _, u := range w.init {
		if u.sidecar() {
			serving = append(serving, u)
		}
	}
	if phase == corev1.PodSucceeded {
		return condition(corev1.ContainersReady, false, "PodCompleted", "")
	}
	if phase == corev1.PodFailed {
		return condition(corev1.ContainersReady, false, "PodFailed", "")
	}
	return condition(corev1.ContainersReady, allOf(serving, isReady), "ContainersNotReady", unready("unready", serving, isReady))
}

func allOf(units []*unit, good func(*unit) bool) bool {
	return !slices.ContainsFunc(units, func(u *unit) bool { return !good(u) })
}

func unready(word string, units []*unit, good func(*unit) bool) string {
	var names []string
	for _, u := range units {
		if !good(u) {
			names = append(names, u.spec.Name)
		}
	}
	return fmt.Sprintf("containers with %s status: [%s]", word, strings.Join(names, " "))
}

// openGates are the readiness gates that others have not set.
func openGates(pod *corev1.Pod) []string {
	var missing []string
	for _, gate := range pod.Spec.ReadinessGates {
		i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == gate.ConditionType })
		switch {
		case i < 0:
			missing = append(missing, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case pod.Status.Conditions[i].Status != corev1.ConditionTrue:
			missing = append(missing, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %s", gate.ConditionType, pod.Status.Conditions[i].Status))
		}
	}
	return missing
}

func condition(kind corev1.PodConditionType, ok bool, reason, message string) corev1.PodCondition {
	if ok {
		return corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue}
	}
	return corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message}
}

// setCondition replaces a condition; the time of transition is that of the last change of its status.
func setCondition(s *corev1.PodStatus, c corev1.PodCondition, now metav1.Time, generation int64) {
	c.LastTransitionTime, c.ObservedGeneration = now, generation
	i := slices.IndexFunc(s.Conditions, func(o corev1.PodCondition) bool { return o.Type == c.Type })
	if i < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	old := s.Conditions[i]
	if old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	c.LastProbeTime = old.LastProbeTime
	s.Conditions[i] = c
}

// warn reports that something about the pod does not work.
func (w *worker) warn(reason, message string) {
	w.opts.Events.Event(w.pod, corev1.EventTypeWarning, reason, message)
}

// containerEvent reports something about a container.
func (w *worker) containerEvent(u *unit, kind, reason, message string) {
	ref := &corev1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: w.namespace, Name: w.name, UID: w.uid, ResourceVersion: w.pod.ResourceVersion,
		FieldPath: fmt.Sprintf("spec.containers{%s}", u.spec.Name),
	}
	if u.init {
		ref.FieldPath = fmt.Sprintf("spec.initContainers{%s}", u.spec.Name)
	}
	w.opts.Events.Event(ref, kind, reason, message)
}
