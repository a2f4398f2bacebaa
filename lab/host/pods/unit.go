package pods

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// unit is a container of a pod, over all its runs.
type unit struct {
	spec *corev1.Container
	init bool

	state    corev1.ContainerState
	last     corev1.ContainerState
	restarts int32
	id       string
	imageID  string
	// ran says that the container was started at least once, so that the next start is a restart.
	ran     bool
	started bool
	ready   bool
	run     *run
	// imageRetry is when an unknown image is looked for again.
	imageRetry time.Time
	retryAt    time.Time
}

const (
	reasonCreating     = "ContainerCreating"
	reasonInitializing = "PodInitializing"
	reasonCrashLoop    = "CrashLoopBackOff"
	reasonErrImage     = "ErrImagePull"
	reasonImageBackOff = "ImagePullBackOff"
	reasonConfig       = "CreateContainerConfigError"
)

// newUnit takes over what an earlier host agent published. What ran then has ended with it.
func newUnit(spec *corev1.Container, init bool, earlier *corev1.ContainerStatus, now time.Time) *unit {
	u := &unit{spec: spec, init: init}
	u.state.Waiting = &corev1.ContainerStateWaiting{Reason: reasonCreating}
	if earlier == nil {
		return u
	}
	u.restarts, u.last, u.id, u.imageID = earlier.RestartCount, earlier.LastTerminationState, earlier.ContainerID, earlier.ImageID
	switch {
	case earlier.State.Running != nil:
		u.ran = true
		u.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The container ended together with its host's agent.",
			StartedAt: earlier.State.Running.StartedAt, FinishedAt: metav1.NewTime(now), ContainerID: earlier.ContainerID,
		}}
	case earlier.State.Terminated != nil:
		u.ran = true
		u.state = earlier.State
	default:
		u.ran = earlier.LastTerminationState.Terminated != nil
	}
	if init && u.succeeded() {
		// Memory volumes are gone, so what init containers put there has to be made again.
		u.wait(reasonInitializing, "")
	}
	return u
}

func findStatus(all []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

// sidecar says whether this is an init container that runs as long as the pod.
func (u *unit) sidecar() bool {
	return u.init && ptr.Deref(u.spec.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways
}

func (u *unit) succeeded() bool {
	return u.run == nil && u.state.Terminated != nil && u.state.Terminated.ExitCode == 0
}

// attempt is the number of the current or next run, which log files are called after.
func (u *unit) attempt() int32 { return u.restarts }

// wait puts the container into the waiting state. How it ended last stays visible.
func (u *unit) wait(reason, message string) {
	if u.state.Terminated != nil {
		u.last = corev1.ContainerState{Terminated: u.state.Terminated}
	}
	u.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	u.started, u.ready = false, false
}

func (u *unit) waitsFor(reason string) bool {
	return u.state.Waiting != nil && u.state.Waiting.Reason == reason
}

// ended is how the container ended last, if it is not running.
func (u *unit) ended() *corev1.ContainerStateTerminated {
	if u.state.Terminated != nil {
		return u.state.Terminated
	}
	return u.last.Terminated
}

// restartable says whether the pod's policy wants the container to run again.
func (u *unit) restartable(policy corev1.RestartPolicy) bool {
	end := u.state.Terminated
	if end == nil || u.sidecar() {
		return true
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return end.ExitCode != 0
	case corev1.RestartPolicyAlways:
		return !u.init || end.ExitCode != 0
	default:
		return true
	}
}
