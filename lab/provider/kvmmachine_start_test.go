package provider

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/kvmmachine"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
)

const (
	within   = 2 * time.Minute // ends what hangs
	interval = 50 * time.Millisecond
	// calm is how long nothing may happen for it to count as not happening.
	calm = 2 * time.Second
	// evictionTimeout is long: tests of the timeout ask for evictions in the past.
	evictionTimeout = 10 * time.Minute
)

// machineLab is a management cluster in which the KVMMachine controller runs in this process, and the tests play Cluster API, the
// scheduler and the kubelets.
type machineLab struct {
	client.Client

	management *mc.Cluster
	workload   *mc.Cluster
	hooks      *hooks
	logs       *scriptedLogs
}

// theMachineLab is shared by the tests of this file's package. Its processes end with this one.
var theMachineLab = sync.OnceValues(func() (*machineLab, error) {
	return startMachineLab(context.Background(), func(*kvmmachine.Reconciler) {})
})

func needMachineLab(t *testing.T) *machineLab {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a cluster, and there is none with -short")
	}
	lab, err := theMachineLab()
	require.NoError(t, err)
	return lab
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(clientgoscheme.AddToScheme(scheme), clusterv1.AddToScheme(scheme), infrav1.AddToScheme(scheme))
}

func startMachineLab(ctx context.Context, change func(*kvmmachine.Reconciler)) (*machineLab, error) {
	var lab *machineLab
	var workload *mc.Cluster
	var wg sync.WaitGroup
	var errManagement, errWorkload error
	wg.Go(func() { lab, errManagement = startManagement(ctx) })
	wg.Go(func() { workload, errWorkload = mc.Start(ctx, mc.Options{}) })
	wg.Wait()
	if err := errors.Join(errManagement, errWorkload); err != nil {
		return nil, err
	}
	lab.workload = workload
	_, err := lab.startController(ctx, lab.management.Config(), "", change)
	return lab, err
}

// startManagement starts a management cluster with two hosts and no controller of ours.
func startManagement(ctx context.Context) (*machineLab, error) {
	lab := &machineLab{hooks: &hooks{}, logs: &scriptedLogs{pods: map[string]*script{}}}
	var err error
	lab.management, err = mc.Start(ctx, mc.Options{
		Parts: mc.ControllerManager | mc.ClusterAPICRDs, CRDDirs: []string{filepath.Join("..", "..", "config", "crd", "bases")},
	})
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	if lab.Client, err = client.New(lab.management.Config(), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	for _, name := range []string{"host-1", "host-2"} {
		host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "zone-of-" + name}}}
		if err := lab.Create(ctx, host); err != nil {
			return nil, err
		}
	}
	return lab, nil
}

// startController runs the controller until ctx ends, for one namespace or, if none is named, for all. What it returns tells when, and why, it has ended.
func (l *machineLab) startController(ctx context.Context, config *rest.Config, namespace string, change func(*kvmmachine.Reconciler)) (<-chan error, error) {
	ctrl.SetLogger(logr.Discard())
	byObject, err := kvmmachine.CacheByObject()
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	caches := cache.Options{ByObject: byObject, DefaultTransform: cache.TransformStripManagedFields()}
	if namespace != "" {
		caches.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Cache: caches})
	if err != nil {
		return nil, err
	}
	options := controller.Options{SkipNameValidation: new(true), MaxConcurrentReconciles: 10}
	clusters, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient: mgr.GetAPIReader(),
		Cache:        clustercache.CacheOptions{ByObject: kvmmachine.WorkloadCacheByObject()},
		Client:       clustercache.ClientOptions{UserAgent: "capk-controller"},
	}, options)
	if err != nil {
		return nil, err
	}
	l.hooks.Client = mgr.GetClient()
	settings := vmpod.DefaultSettings()
	settings.Image = "vm-launcher:test"
	settings.EvictionTimeout = evictionTimeout
	reconciler := &kvmmachine.Reconciler{
		Client: l.hooks, APIReader: mgr.GetAPIReader(), Clusters: clusters, Pods: l.logs,
		Recorder: mgr.GetEventRecorder("capk-controller"), Clock: clock.RealClock{}, Settings: settings,
	}
	change(reconciler)
	if err := reconciler.SetupWithManager(ctx, mgr, options); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return nil, errors.Join(errors.New("the controller did not start"), <-ended)
	}
	return ended, nil
}

// hooks is the controller's client: it counts what is written and lets tests fail writes.
type hooks struct {
	client.Client

	writes atomic.Int64
	// last is what was written last, for messages.
	last atomic.Value
	fail sync.Map // "verb name" -> func() error
}

// write counts a write and asks whether it may happen.
func (h *hooks) write(verb, name string) error {
	if f, ok := h.fail.Load(verb + " " + name); ok {
		if err := f.(func() error)(); err != nil {
			return err
		}
	}
	h.writes.Add(1)
	h.last.Store(verb + " " + name)
	return nil
}

func (h *hooks) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if err := h.write("create", obj.GetName()); err != nil {
		return err
	}
	return h.Client.Create(ctx, obj, opts...)
}

func (h *hooks) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	if err := h.write("delete", obj.GetName()); err != nil {
		return err
	}
	return h.Client.Delete(ctx, obj, opts...)
}

func (h *hooks) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	if err := h.write("update", obj.GetName()); err != nil {
		return err
	}
	return h.Client.Update(ctx, obj, opts...)
}

func (h *hooks) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if err := h.write("patch", obj.GetName()); err != nil {
		return err
	}
	return h.Client.Patch(ctx, obj, patch, opts...)
}

// named is what an apply configuration made of an unstructured object offers.
type named interface{ GetName() string }

func nameOf(obj runtime.ApplyConfiguration) string {
	if n, ok := obj.(named); ok {
		return n.GetName()
	}
	return ""
}

func (h *hooks) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	if err := h.write("apply", nameOf(obj)); err != nil {
		return err
	}
	return h.Client.Apply(ctx, obj, opts...)
}

func (h *hooks) Status() client.SubResourceWriter { return &statusHooks{h.Client.Status(), h} }

type statusHooks struct {
	client.SubResourceWriter

	hooks *hooks
}

func (s *statusHooks) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	if err := s.hooks.write("status", obj.GetName()); err != nil {
		return err
	}
	return s.SubResourceWriter.Patch(ctx, obj, patch, opts...)
}

func (s *statusHooks) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	if err := s.hooks.write("status", nameOf(obj)); err != nil {
		return err
	}
	return s.SubResourceWriter.Apply(ctx, obj, opts...)
}

// scriptedLogs are the logs of pods, line by line as the tests say.
type scriptedLogs struct {
	mu   sync.Mutex
	pods map[string]*script
	open atomic.Int64
}

type script struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{}
}

func (l *scriptedLogs) of(pod string) *script {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pods[pod] == nil {
		l.pods[pod] = &script{more: make(chan struct{})}
	}
	return l.pods[pod]
}

// say appends a report to a pod's log.
func (l *scriptedLogs) say(pod client.ObjectKey, report *contract.Report) {
	line, err := report.Line()
	if err != nil {
		panic(err)
	}
	s := l.of(pod.String())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
	close(s.more)
	s.more = make(chan struct{})
}

// Follow reads from the beginning, as after a restart of the controller.
func (l *scriptedLogs) Follow(ctx context.Context, pod client.ObjectKey, _ string, _ time.Time) (io.ReadCloser, error) {
	reader, writer := io.Pipe()
	s := l.of(pod.String())
	l.open.Add(1)
	go func() {
		defer l.open.Add(-1)
		for next := 0; ; {
			s.mu.Lock()
			lines, more := s.lines[next:], s.more
			s.mu.Unlock()
			next += len(lines)
			if len(lines) > 0 {
				if _, err := io.WriteString(writer, strings.Join(lines, "\n")+"\n"); err != nil {
					return
				}
				continue
			}
			select {
			case <-more:
			case <-ctx.Done():
				_ = writer.CloseWithError(ctx.Err())
				return
			}
		}
	}()
	return reader, nil
}

// demo is one cluster with its namespace.
type demo struct {
	*machineLab

	namespace string
	cluster   *clusterv1.Cluster
}

// newDemo makes a namespace with a cluster whose infrastructure is provisioned.
func (l *machineLab) newDemo(t *testing.T) *demo {
	t.Helper()
	d := l.newUnprovisioned(t)
	d.provision(t)
	return d
}

// newConnected makes one whose workload cluster can be reached.
func (l *machineLab) newConnected(t *testing.T) (*demo, client.Client) {
	t.Helper()
	d := l.newUnprovisioned(t)
	// Before the cluster is provisioned: a first attempt to connect that fails is repeated half a minute later.
	workload := d.connect(t)
	d.provision(t)
	return d, workload
}

func (d *demo) provision(t *testing.T) {
	t.Helper()
	d.cluster.Status.Initialization.InfrastructureProvisioned = new(true)
	require.NoError(t, d.Status().Update(t.Context(), d.cluster))
}

func (l *machineLab) newUnprovisioned(t *testing.T) *demo {
	t.Helper()
	ctx := t.Context()
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "demo-"}}
	require.NoError(t, l.Create(ctx, space))
	require.Eventually(t, func() bool {
		return l.Get(ctx, client.ObjectKey{Namespace: space.Name, Name: "default"}, &corev1.ServiceAccount{}) == nil
	}, within, interval, "pods need it")
	// The label is Cluster API's.
	infra := &infrav1.KVMCluster{ObjectMeta: metav1.ObjectMeta{Namespace: space.Name, Name: "demo", Labels: map[string]string{clusterv1.ClusterNameLabel: "demo"}}}
	infra.Spec.FailureDomainLabel = "zone"
	require.NoError(t, l.Create(ctx, infra))
	d := &demo{machineLab: l, namespace: space.Name}
	d.cluster = &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: space.Name, Name: "demo"},
		Spec: clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: infrav1.GroupName, Kind: "KVMCluster", Name: "demo",
		}},
	}
	require.NoError(t, l.Create(ctx, d.cluster))
	return d
}

// connect lets the controller reach the workload cluster.
func (d *demo) connect(t *testing.T) client.Client {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.namespace, Name: "demo-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: "demo"},
		},
		Type: clusterv1.ClusterSecretType, Data: map[string][]byte{"value": d.workload.Kubeconfig()},
	}
	require.NoError(t, d.Create(t.Context(), secret))
	config, err := clientcmd.RESTConfigFromKubeConfig(d.workload.Kubeconfig())
	require.NoError(t, err)
	c, err := client.New(config, client.Options{})
	require.NoError(t, err)
	return c
}

// newMachine makes a Machine with its KVMMachine, as Cluster API would. The changes happen before it is made.
func (d *demo) newMachine(t *testing.T, name string, changes ...func(*infrav1.KVMMachine, *clusterv1.Machine)) *infrav1.KVMMachine {
	t.Helper()
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "demo"}},
		Spec: clusterv1.MachineSpec{
			ClusterName: "demo",
			Bootstrap:   clusterv1.Bootstrap{DataSecretName: new(name + "-bootstrap")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: infrav1.GroupName, Kind: "KVMMachine", Name: name,
			},
		},
	}
	kvm := &infrav1.KVMMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "demo"}},
		Spec:       infrav1.KVMMachineSpec{Image: "debian", Resources: infrav1.Resources{CPU: 2, Memory: "2Gi"}},
	}
	for _, change := range changes {
		change(kvm, machine)
	}
	require.NoError(t, d.Create(t.Context(), machine))
	kvm.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(machine, clusterv1.GroupVersion.WithKind("Machine"))}
	require.NoError(t, d.Create(t.Context(), kvm))
	return kvm
}

func asControlPlane(_ *infrav1.KVMMachine, m *clusterv1.Machine) {
	m.Labels[clusterv1.MachineControlPlaneLabel] = ""
}

// reread returns the machine as it is now.
func (d *demo) reread(t *testing.T, m *infrav1.KVMMachine) *infrav1.KVMMachine {
	t.Helper()
	now := &infrav1.KVMMachine{}
	require.NoError(t, d.Get(t.Context(), client.ObjectKeyFromObject(m), now))
	return now
}

// condition waits until the machine's condition has the reason, and returns it.
func (d *demo) condition(t *testing.T, m *infrav1.KVMMachine, kind, reason string) *metav1.Condition {
	t.Helper()
	var c *metav1.Condition
	ok := eventually(t, func() bool {
		now := &infrav1.KVMMachine{}
		if err := d.Get(t.Context(), client.ObjectKeyFromObject(m), now); err != nil {
			return false
		}
		c = meta.FindStatusCondition(now.Status.Conditions, kind)
		return c != nil && c.Reason == reason
	})
	require.True(t, ok, "condition %s has to become %s, and is %+v", kind, reason, c)
	return c
}

// never looks for a while whether something happens, here and not beside the test: what asks a cluster there would fail a test that is over.
func never(t *testing.T, what string, happens func() bool) {
	t.Helper()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for end := time.After(calm); ; {
		require.False(t, happens(), what)
		select {
		case <-ticker.C:
		case <-end:
			return
		}
	}
}

// eventually is require.Eventually without its goroutine, so that conditions may use t.
func eventually(t *testing.T, done func() bool) bool {
	t.Helper()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for deadline := time.After(within); ; {
		if done() {
			return true
		}
		select {
		case <-ticker.C:
		case <-deadline:
			return false
		}
	}
}

// pod waits for the machine's pod.
func (d *demo) pod(t *testing.T, m *infrav1.KVMMachine) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	require.True(t, eventually(t, func() bool { return d.Get(t.Context(), client.ObjectKeyFromObject(m), pod) == nil }), "there has to be a pod")
	return pod
}

// schedule plays the scheduler.
func (d *demo) schedule(t *testing.T, pod *corev1.Pod, host string) {
	t.Helper()
	require.NoError(t, d.SubResource("binding").Create(t.Context(), pod, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: host},
	}))
}

// kubelet plays the kubelet: it says how the named container is.
func (d *demo) kubelet(t *testing.T, pod *corev1.Pod, status corev1.ContainerStatus) {
	t.Helper()
	require.True(t, eventually(t, func() bool {
		now := &corev1.Pod{}
		require.NoError(t, d.Get(t.Context(), client.ObjectKeyFromObject(pod), now))
		status.Image, status.ImageID = "vm-launcher:test", "test"
		if status.Name == "" {
			status.Name = contract.Container
		}
		now.Status.Phase = corev1.PodRunning
		now.Status.PodIP, now.Status.PodIPs = "10.100.1.7", []corev1.PodIP{{IP: "10.100.1.7"}}
		now.Status.ContainerStatuses = []corev1.ContainerStatus{status}
		return d.Status().Update(t.Context(), now) == nil
	}))
}

func running(id string) corev1.ContainerStatus {
	return corev1.ContainerStatus{ContainerID: "test://" + id, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}
}

func exited(code int32, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{ContainerID: "test://1", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: code, Message: message, Reason: "Error",
	}}}
}

// boot takes a machine's pod to a running virtual machine.
func (d *demo) boot(t *testing.T, m *infrav1.KVMMachine) *corev1.Pod {
	t.Helper()
	pod := d.pod(t, m)
	d.schedule(t, pod, "host-1")
	d.kubelet(t, pod, running("1"))
	d.logs.say(client.ObjectKeyFromObject(pod), &contract.Report{Kind: contract.ReportStarted, Time: time.Now(), Address: "10.100.1.7"})
	d.condition(t, m, infrav1.VirtualMachineProvisionedCondition, kvmmachine.ReasonRunning)
	return pod
}

// guestSays appends what the agent found to the log.
func (d *demo) guestSays(pod *corev1.Pod, g *contract.Guest) {
	d.logs.say(client.ObjectKeyFromObject(pod), &contract.Report{Kind: contract.ReportGuest, Time: time.Now(), Guest: g})
}

// end plays the kubelet that has ended a deleted pod.
func (d *demo) end(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	err := d.Delete(t.Context(), pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	require.NoError(t, client.IgnoreNotFound(err))
}

// gone waits until the object is no more.
func (d *demo) gone(t *testing.T, obj client.Object) {
	t.Helper()
	require.True(t, eventually(t, func() bool {
		return apierrors.IsNotFound(d.Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
	}), "%T %s has to go, and has finalizers %v", obj, obj.GetName(), obj.GetFinalizers())
}

// nudge makes the controller look at the machine again, by a change that means nothing.
func (d *demo) nudge(t *testing.T, m *infrav1.KVMMachine, value string) {
	t.Helper()
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name}}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"nudge":"`+value+`"}}}`))
	require.NoError(t, d.Patch(t.Context(), machine, patch))
}

// still checks that nothing happens for a while although the controller looks.
func (d *demo) still(t *testing.T, m *infrav1.KVMMachine, why string, broken func() bool) {
	t.Helper()
	d.nudge(t, m, why)
	never(t, why, broken)
}

// pods lists the namespace's pods.
func (d *demo) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	require.NoError(t, d.List(t.Context(), list, client.InNamespace(d.namespace)))
	return list.Items
}
