package migrationtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

// kubelet does for the pods of machines what scheduler and kubelets would, at
// once: it binds a pod to a host on which the cluster has none, says
// that its containers run, and ends a deleted pod. A pod it starts is a new VM:
// other container ids, no address, and no Node in the workload cluster.
//
// A deleted pod first loses its containers, then its grace period, as with the
// real one. It is gone when its finalizers are.
type kubelet struct {
	client  kubernetes.Interface
	log     logrus.FieldLogger
	factory informers.SharedInformerFactory
	queue   workqueue.TypedRateLimitingInterface[cache.ObjectName]
	cancel  context.CancelFunc
	done    sync.WaitGroup

	mu      sync.Mutex
	watched map[string]bool
	// given counts the addresses that machines of the provider got.
	given int
}

func startKubelet(client kubernetes.Interface, log logrus.FieldLogger) (*kubelet, error) {
	ctx, cancel := context.WithCancel(context.Background())
	k := &kubelet{
		client: client, log: log, cancel: cancel, watched: map[string]bool{},
		factory: informers.NewSharedInformerFactory(client, 0),
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()),
	}
	pods := k.factory.Core().V1().Pods().Informer()
	add := func(o any) {
		if name, err := cache.ObjectToName(o); err == nil {
			k.queue.Add(name)
		}
	}
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }}); err != nil {
		cancel()
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	k.factory.Core().V1().Nodes().Informer()
	k.factory.Start(ctx.Done())
	for kind, ok := range k.factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			cancel()
			return nil, fmt.Errorf("watching %s: it does not begin", kind)
		}
	}
	k.done.Go(func() {
		for k.work(ctx) {
		}
	})
	return k, nil
}

func (k *kubelet) stop() {
	k.queue.ShutDown()
	k.done.Wait()
	k.cancel()
	k.factory.Shutdown()
}

// watch makes the pods of a namespace its own; forget leaves them alone.
func (k *kubelet) watch(namespace string) {
	k.mu.Lock()
	k.watched[namespace] = true
	k.mu.Unlock()
	for _, o := range k.factory.Core().V1().Pods().Informer().GetStore().List() {
		if name, err := cache.ObjectToName(o); err == nil && name.Namespace == namespace {
			k.queue.Add(name)
		}
	}
}

func (k *kubelet) forget(namespace string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.watched, namespace)
}

func (k *kubelet) watches(namespace string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.watched[namespace]
}

// pods are those of a namespace with some labels, as they were heard of last. Who
// looks every moment does not ask the API server.
func (k *kubelet) pods(namespace string, some labels.Set) ([]*corev1.Pod, error) {
	return k.factory.Core().V1().Pods().Lister().Pods(namespace).List(labels.SelectorFromSet(some))
}

// pod is one that was heard of and not of its end.
func (k *kubelet) pod(namespace, name string) (*corev1.Pod, error) {
	return k.factory.Core().V1().Pods().Lister().Pods(namespace).Get(name)
}

func (k *kubelet) work(ctx context.Context) bool {
	name, shutdown := k.queue.Get()
	if shutdown {
		return false
	}
	defer k.queue.Done(name)
	err := k.sync(ctx, name)
	switch {
	case err == nil, apierrors.IsNotFound(err):
		k.queue.Forget(name)
	default:
		// Somebody wrote in between, or a test has taken the API server away.
		k.log.WithError(err).WithField("pod", name.String()).Debug("trying again")
		k.queue.AddRateLimited(name)
	}
	return true
}

// sync takes one step with one pod; what it writes brings the pod here again.
func (k *kubelet) sync(ctx context.Context, name cache.ObjectName) error {
	if !k.watches(name.Namespace) {
		return nil
	}
	cached, err := k.factory.Core().V1().Pods().Lister().Pods(name.Namespace).Get(name.Name)
	if err != nil {
		return err
	}
	pod := cached.DeepCopy()
	switch {
	case pod.DeletionTimestamp != nil && running(pod):
		return k.writeStatus(ctx, ended(pod))
	case pod.DeletionTimestamp != nil && ptr.Deref(pod.DeletionGracePeriodSeconds, 0) > 0:
		return k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		})
	case pod.DeletionTimestamp != nil:
		return nil
	case pod.Spec.NodeName == "":
		return k.bind(ctx, pod)
	case len(pod.Status.ContainerStatuses) == 0:
		return k.writeStatus(ctx, k.started(pod))
	case ready(pod) != condition(pod, corev1.PodReady):
		setCondition(pod, corev1.PodReady, ready(pod), metav1.NewTime(time.Now().Truncate(time.Second)))
		return k.writeStatus(ctx, pod)
	default:
		return nil
	}
}

// ready tells whether a pod whose containers are ready is so itself: its
// readiness gates decide.
func ready(pod *corev1.Pod) corev1.ConditionStatus {
	for _, gate := range pod.Spec.ReadinessGates {
		if condition(pod, gate.ConditionType) != corev1.ConditionTrue {
			return corev1.ConditionFalse
		}
	}
	return corev1.ConditionTrue
}

// address is what a pod gets. A machine of the provider has one that programs
// can listen at, those of legacy machines are only written down.
func (k *kubelet) address(pod *corev1.Pod, host string) string {
	if pod.Labels[infrav1.MachineLabel] == "" {
		return host
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.given++
	return machineAddress(machines, k.given).String()
}

func (k *kubelet) writeStatus(ctx context.Context, pod *corev1.Pod) error {
	_, err := k.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

func running(pod *corev1.Pod) bool {
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running != nil {
			return true
		}
	}
	return false
}

// bind chooses the first host with the pod's role and without a pod of its
// cluster. Clusters of one organization have their machines in one namespace:
// those of another, which may stay for as long as the world does, are in nobody's way.
// Machines of the provider share a host if they have to, as one does whose
// directories are where another machine has come to meanwhile; legacy machines never do.
func (k *kubelet) bind(ctx context.Context, pod *corev1.Pod) error {
	siblings := labels.Everything()
	if cluster, ok := pod.Labels[clusterv1.ClusterNameLabel]; ok {
		siblings = labels.SelectorFromSet(labels.Set{clusterv1.ClusterNameLabel: cluster})
	}
	pods, err := k.factory.Core().V1().Pods().Lister().Pods(pod.Namespace).List(siblings)
	if err != nil {
		return err
	}
	taken := map[string]bool{}
	for _, p := range pods {
		taken[p.Spec.NodeName] = true
	}
	hosts, err := k.factory.Core().V1().Nodes().Lister().List(labels.Everything())
	if err != nil {
		return err
	}
	var free, shared []string
	for _, host := range hosts {
		switch {
		case !labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(labels.Set(host.Labels)):
		case !taken[host.Name]:
			free = append(free, host.Name)
		case pod.Labels[infrav1.MachineLabel] != "":
			shared = append(shared, host.Name)
		}
	}
	slices.Sort(free)
	slices.Sort(shared)
	fit := slices.Concat(free, shared)
	if len(fit) == 0 {
		return errors.New("there is no host left for it")
	}
	return k.client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: fit[0]},
	}, metav1.CreateOptions{})
}

// started gives the pod the status of one whose containers are all ready. The
// pod itself is ready if its readiness gates are.
func (k *kubelet) started(pod *corev1.Pod) *corev1.Pod {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &now
	for kind, status := range map[corev1.PodConditionType]corev1.ConditionStatus{
		corev1.PodInitialized: corev1.ConditionTrue, corev1.ContainersReady: corev1.ConditionTrue, corev1.PodReady: ready(pod),
	} {
		setCondition(pod, kind, status, now)
	}
	if host, err := k.factory.Core().V1().Nodes().Lister().Get(pod.Spec.NodeName); err == nil {
		for _, address := range host.Status.Addresses {
			if address.Type == corev1.NodeInternalIP {
				own := k.address(pod, address.Address)
				pod.Status.HostIP, pod.Status.PodIP = address.Address, own
				pod.Status.HostIPs, pod.Status.PodIPs = []corev1.HostIP{{IP: address.Address}}, []corev1.PodIP{{IP: own}}
			}
		}
	}
	// A master that has just booted is not migrated.
	booted := metav1.NewTime(now.Add(-time.Hour))
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: "docker-pullable://" + c.Image, ContainerID: "docker://" + newContainerID(),
			Ready: true, Started: new(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: booted}},
		})
	}
	return pod
}

// ended gives the pod the status of one whose containers have all ended.
func ended(pod *corev1.Pod) *corev1.Pod {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	pod.Status.Phase = corev1.PodSucceeded
	for _, kind := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		setCondition(pod, kind, corev1.ConditionFalse, now)
	}
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		c.Ready, c.Started = false, new(false)
		end := &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: now, ContainerID: c.ContainerID}
		if c.State.Running != nil {
			end.StartedAt = c.State.Running.StartedAt
		}
		c.State = corev1.ContainerState{Terminated: end}
	}
	return pod
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

func setCondition(pod *corev1.Pod, kind corev1.PodConditionType, status corev1.ConditionStatus, now metav1.Time) {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == kind {
			if c.Status != status {
				c.Status, c.LastTransitionTime = status, now
			}
			return
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: now})
}

func newContainerID() string {
	var id [32]byte
	_, _ = rand.Read(id[:]) // Never fails.
	return hex.EncodeToString(id[:])
}
