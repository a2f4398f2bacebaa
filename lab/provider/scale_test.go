package provider

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/kvmcluster"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/kvmmachine"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// What 1,000 machines may cost; `go test -bench Scale -benchtime 1x -run '^$' -timeout 60m ./provider` measures it.
const (
	maxResidentMB = 200
	maxP99        = 50 * time.Millisecond
	scaleRounds   = 5
	scalePace     = 16
	scaleSettle   = 10 * time.Minute
	// scaleWorkers is how many machines are reconciled at a time, as in the controller.
	scaleWorkers = 10
)

// BenchmarkScale measures a resync of 100, 1,000 and 5,000 machines that are as they should be, against a real API server. The
// machines of a smaller size stay for the next.
func BenchmarkScale(b *testing.B) {
	var reconciler reconcile.Reconciler
	clusters := &kvmcluster.Reconciler{ClusterDomain: kvmcluster.DefaultClusterDomain}
	lab, err := startMachineLab(b.Context(), func(r *kvmmachine.Reconciler) {
		r.Wrap = func(inner reconcile.Reconciler) reconcile.Reconciler {
			reconciler = inner
			return inner
		}
		clusters.Client, clusters.APIReader, clusters.Recorder = r.Client, r.APIReader, r.Recorder
	})
	require.NoError(b, err)
	b.Cleanup(func() {
		for _, c := range []interface{ Stop(context.Context) error }{lab.management, lab.workload} {
			require.NoError(b, c.Stop(context.Background()))
		}
	})
	scale := newScale(b, lab)
	scale.clusters = clusters
	for _, size := range []int{100, 1000, 5000} {
		if limit, err := strconv.Atoi(os.Getenv("SCALE_LIMIT")); err == nil && size > limit {
			continue
		}
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			scale.grow(b, size)
			for b.Loop() {
				scale.measure(b, reconciler, size)
			}
		})
	}
}

type scale struct {
	*machineLab

	workloadClient client.Client
	names          []string
	// clusters looks at all of a cluster's machines at once.
	clusters *kvmcluster.Reconciler
}

const scaleNamespace = "scale"

func newScale(b *testing.B, lab *machineLab) *scale {
	b.Helper()
	s := &scale{machineLab: lab}
	ctx := b.Context()
	var err error
	s.workloadClient, err = client.New(lab.workload.Config(), client.Options{})
	require.NoError(b, err)
	cluster := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: scaleNamespace, Name: "demo"},
		Spec: clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: infrav1.GroupName, Kind: "KVMCluster", Name: "demo",
		}},
	}
	require.NoError(b, s.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: scaleNamespace}}))
	require.NoError(b, s.Create(ctx, cluster))
	for _, obj := range []client.Object{
		&infrav1.KVMCluster{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: scaleNamespace, Name: "demo", Labels: map[string]string{clusterv1.ClusterNameLabel: "demo"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "demo", UID: cluster.UID}},
			},
			Spec: infrav1.KVMClusterSpec{FailureDomainLabel: "zone"},
		},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: scaleNamespace, Name: "demo-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: "demo"},
			},
			Type: clusterv1.ClusterSecretType, Data: map[string][]byte{"value": lab.workload.Kubeconfig()},
		},
	} {
		require.NoError(b, s.Create(ctx, obj))
	}
	cluster.Status.Initialization.InfrastructureProvisioned = new(true)
	require.NoError(b, s.Status().Update(ctx, cluster))
	require.Eventually(b, func() bool {
		return s.Get(ctx, client.ObjectKey{Namespace: scaleNamespace, Name: "default"}, &corev1.ServiceAccount{}) == nil
	}, within, interval)
	return s
}

// each does something for every name, several at a time, and fails the benchmark once.
func each(b *testing.B, names []string, do func(name string) error) {
	b.Helper()
	work := make(chan string)
	errs := make(chan error, len(names))
	var wg sync.WaitGroup
	for range scalePace {
		wg.Go(func() {
			for name := range work {
				if err := do(name); err != nil {
					errs <- fmt.Errorf("%s: %w", name, err)
				}
			}
		})
	}
	for _, name := range names {
		work <- name
	}
	close(work)
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(b, err)
	}
}

// grow adds machines, plays everybody else for them, and waits until all are ready and nothing moves.
func (s *scale) grow(b *testing.B, size int) {
	b.Helper()
	ctx := b.Context()
	var added []string
	for i := len(s.names); i < size; i++ {
		added = append(added, fmt.Sprintf("machine-%05d", i))
	}
	each(b, added, func(name string) error { return s.add(ctx, name) })
	s.names = append(s.names, added...)
	each(b, added, func(name string) error { return s.bootPod(ctx, name) })
	deadline := time.Now().Add(scaleSettle)
	for {
		before := s.hooks.writes.Load()
		ready := s.ready(b)
		time.Sleep(2 * time.Second)
		s.reconcileCluster(b)
		if ready == size && s.hooks.writes.Load() == before {
			return
		}
		require.True(b, time.Now().Before(deadline), "%d of %d machines are ready; last write: %v", ready, size, s.hooks.last.Load())
	}
}

func (s *scale) add(ctx context.Context, name string) error {
	key := client.ObjectKey{Namespace: scaleNamespace, Name: name}
	s.logs.say(key, &contract.Report{Kind: contract.ReportStarted, Time: time.Now()})
	s.logs.say(key, &contract.Report{Kind: contract.ReportGuest, Time: time.Now(), Guest: &contract.Guest{Bootstrap: contract.BootstrapSucceeded}})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: vmpod.ProviderID("demo", name)}}
	if err := s.workloadClient.Create(ctx, node); err != nil {
		return err
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	for i := range 40 {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example/image-%d@sha256:%064d", i, i)}})
	}
	if err := s.workloadClient.Status().Update(ctx, node); err != nil {
		return err
	}
	labels := map[string]string{clusterv1.ClusterNameLabel: "demo"}
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: scaleNamespace, Name: name, Labels: labels},
		Spec: clusterv1.MachineSpec{
			ClusterName: "demo", Bootstrap: clusterv1.Bootstrap{DataSecretName: new(name)},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupName, Kind: "KVMMachine", Name: name},
		},
	}
	if err := s.Create(ctx, machine); err != nil {
		return err
	}
	return s.Create(ctx, &infrav1.KVMMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: scaleNamespace, Name: name, Labels: labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(machine, clusterv1.GroupVersion.WithKind("Machine"))},
		},
		Spec: infrav1.KVMMachineSpec{Image: "debian", Resources: infrav1.Resources{CPU: 2, Memory: "2Gi"}},
	})
}

// bootPod plays scheduler and kubelet.
func (s *scale) bootPod(ctx context.Context, name string) error {
	key := client.ObjectKey{Namespace: scaleNamespace, Name: name}
	pod := &corev1.Pod{}
	for deadline := time.Now().Add(scaleSettle); ; {
		err := s.Get(ctx, key, pod)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(interval)
	}
	err := s.SubResource("binding").Create(ctx, pod, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: scaleNamespace}, Target: corev1.ObjectReference{Kind: "Node", Name: "host-1"},
	})
	if err != nil {
		return err
	}
	status := running("1")
	status.Name, status.Image, status.ImageID, status.Ready = contract.Container, "vm-launcher:test", "test", true
	patch := client.StrategicMergeFrom(pod.DeepCopy())
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP, pod.Status.PodIPs = "10.100.1.7", []corev1.PodIP{{IP: "10.100.1.7"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	return s.Status().Patch(ctx, pod, patch)
}

// ready counts machines that are ready, with a Node that is.
func (s *scale) ready(b *testing.B) int {
	b.Helper()
	list := &infrav1.KVMMachineList{}
	require.NoError(b, s.List(b.Context(), list, client.InNamespace(scaleNamespace)))
	n := 0
	for i := range list.Items {
		c := list.Items[i].Status.Conditions
		if meta.IsStatusConditionTrue(c, clusterv1.ReadyCondition) && meta.IsStatusConditionTrue(c, infrav1.NodeReadyCondition) {
			n++
		}
	}
	return n
}

// reconcileCluster is one look at all machines together, and how long it took.
func (s *scale) reconcileCluster(b *testing.B) time.Duration {
	b.Helper()
	began := time.Now()
	_, err := s.clusters.Reconcile(b.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: scaleNamespace, Name: "demo"}})
	require.NoError(b, err)
	return time.Since(began)
}

// round is one resync.
type round struct {
	writes               int64
	p50, p99, total, cpu time.Duration
	// cluster is the slowest look at all machines together.
	cluster time.Duration
}

// measure reconciles every machine once, a few times over. The fastest round counts: the others measure who else was busy here.
func (s *scale) measure(b *testing.B, reconciler reconcile.Reconciler, size int) {
	b.Helper()
	var best round
	var writes int64
	for i := range scaleRounds {
		one := s.resync(b, reconciler, size)
		writes += one.writes
		if i == 0 || one.p99 < best.p99 {
			best = one
		}
	}
	debug.FreeOSMemory()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	heap, resident := float64(memory.HeapAlloc)/(1<<20), residentMB(b)

	b.ReportMetric(float64(writes), "writes")
	b.ReportMetric(float64(best.p50.Microseconds()), "p50-µs")
	b.ReportMetric(float64(best.p99.Microseconds()), "p99-µs")
	b.ReportMetric(float64(best.total.Microseconds())/float64(size), "µs/machine")
	b.ReportMetric(float64(best.cpu.Microseconds())/float64(size), "cpu-µs/machine")
	b.ReportMetric(float64(best.cluster.Microseconds()), "cluster-µs")
	b.ReportMetric(heap, "heap-MB")
	b.ReportMetric(resident, "resident-MB")
	b.Logf("%d machines: %d writes, p50 %s, p99 %s, %s for all, %s of CPU each, heap %.0f MB, resident %.0f MB",
		size, writes, best.p50, best.p99, best.total, best.cpu/time.Duration(size), heap, resident)
	if writes != 0 {
		b.Errorf("%d writes in a resync of machines that are as they should be; the last: %v", writes, s.hooks.last.Load())
	}
	if slowest := max(best.p99, best.cluster); size <= 1000 && slowest > maxP99 {
		b.Errorf("p99 of a reconcile is %s, of the KVMCluster's %s, at most %s is allowed", best.p99, best.cluster, maxP99)
	}
	if size <= 1000 && resident > maxResidentMB {
		b.Errorf("%.0f MB for %d machines, at most %d are allowed", resident, size, maxResidentMB)
	}
}

// resync reconciles every machine once, as many at a time as the controller does.
func (s *scale) resync(b *testing.B, reconciler reconcile.Reconciler, size int) round {
	b.Helper()
	ctx := b.Context()
	writes, cpu := s.hooks.writes.Load(), cpuTime(b)
	work := make(chan string)
	took := make(chan time.Duration, size)
	var wg sync.WaitGroup
	began := time.Now()
	for range scaleWorkers {
		wg.Go(func() {
			for name := range work {
				start := time.Now()
				if _, err := reconciler.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: scaleNamespace, Name: name}}); err != nil {
					b.Error(err)
				}
				took <- time.Since(start)
			}
		})
	}
	for _, name := range s.names {
		work <- name
	}
	close(work)
	wg.Wait()
	close(took)
	all := make([]time.Duration, 0, size)
	for t := range took {
		all = append(all, t)
	}
	slices.Sort(all)
	one := round{p50: all[len(all)/2], p99: all[len(all)*99/100], total: time.Since(began), cpu: cpuTime(b) - cpu}
	for range scaleRounds {
		one.cluster = max(one.cluster, s.reconcileCluster(b))
	}
	one.writes = s.hooks.writes.Load() - writes
	return one
}

// cpuTime is what this process has used, whoever else wants the machine.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// residentMB is the memory of this process as the kernel counts it.
func residentMB(b *testing.B) float64 {
	b.Helper()
	raw, err := os.ReadFile("/proc/self/status")
	require.NoError(b, err)
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kilobytes, err := strconv.ParseFloat(fields[1], 64)
			require.NoError(b, err)
			return kilobytes / 1024
		}
	}
	b.Fatal("no VmRSS in /proc/self/status")
	return 0
}
