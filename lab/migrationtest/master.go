package migrationtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
)

// staticPods of a legacy master, by the file of their manifest.
func staticPods() map[string]string {
	return map[string]string{"k8s-api-server.yaml": "api-server", "k8s-controller-manager.yaml": "controller-manager", "k8s-scheduler.yaml": "scheduler"}
}

// apiServerFlags are those that users of both API servers would notice.
func apiServerFlags(auditPolicy string) []string {
	return []string{"kube-apiserver", "--etcd-prefix=giantswarm.io", "--service-cluster-ip-range=172.31.0.0/16", "--audit-policy-file=" + auditPolicy}
}

// leases are held by what a manifest's program leads.
func leases() map[string]string {
	return map[string]string{"k8s-controller-manager.yaml": "kube-controller-manager", "k8s-scheduler.yaml": "kube-scheduler"}
}

// master stands in for the inside of the legacy master beside its API server
// and etcd, which are real: a kubelet with static pods that runs the scripts of
// pods bound to it, for real, in a directory instead of /etc/kubernetes; and
// controllers as far as their Leases go.
type master struct {
	c   *Cluster
	dir string
	api client.Client
	// running are the pods' processes.
	running map[types.UID]*podProcess
	// serves while its API server runs.
	serves bool
	// gone when the VM is.
	gone bool
}

// newMaster makes what every legacy master has.
func newMaster(ctx context.Context, c *Cluster) (*master, error) {
	config := c.Workload.Config()
	config.Host, config.Timeout = "https://"+c.APIDomain, 10*time.Second
	api, err := client.New(config, client.Options{Scheme: c.world.Client.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("making the kubelet's client: %w", err)
	}
	if err := until(ctx, "the kubelet has heard of the legacy master", seedLimit, func() (bool, error) {
		_, err := c.world.kubelet.pod(c.ID, c.Master)
		return err == nil, client.IgnoreNotFound(err)
	}); err != nil {
		return nil, err
	}
	m := &master{c: c, dir: filepath.Join(c.dir, "master"), api: api, running: map[types.UID]*podProcess{}, serves: true}
	if err := os.MkdirAll(filepath.Join(m.dir, "manifests"), 0o700); err != nil {
		return nil, fmt.Errorf("making the legacy master's manifests: %w", err)
	}
	for file := range staticPods() {
		if err := os.WriteFile(m.manifest(file), nil, 0o600); err != nil {
			return nil, fmt.Errorf("making the legacy master's manifests: %w", err)
		}
	}
	proxy := m.pod("kube-proxy-m4st3", "docker.io/giantswarm/kube-proxy:v1.21.5")
	proxy.Spec.ServiceAccountName = "kube-proxy"
	labels := map[string]string{"k8s-app": "kube-proxy"}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: proxy.Spec.ServiceAccountName}}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-proxy"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: proxy.Spec.Containers, ServiceAccountName: account.Name}},
		},
	}
	if err := errors.Join(m.api.Create(ctx, account), m.api.Create(ctx, set)); err != nil {
		return nil, fmt.Errorf("making the DaemonSet of kube-proxy: %w", err)
	}
	proxy.Labels = labels
	proxy.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set.Name, UID: set.UID, Controller: new(true)}}
	return m, errors.Join(m.create(ctx, proxy), m.tick(ctx, ""))
}

func (m *master) manifest(file string) string { return filepath.Join(m.dir, "manifests", file) }

func (m *master) runs(file string) bool {
	_, err := os.Stat(m.manifest(file))
	return err == nil
}

func (m *master) pod(name, image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name},
		Spec: corev1.PodSpec{
			NodeName: m.c.Master, HostNetwork: true, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "main", Image: image}},
		},
	}
}

// create makes a pod that runs.
func (m *master) create(ctx context.Context, pod *corev1.Pod) error {
	if err := m.api.Create(ctx, pod); err != nil {
		return client.IgnoreAlreadyExists(err)
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return m.api.Status().Update(ctx, pod)
}

// tick does what has come up since: mirror pods follow their manifests, pods bound to
// the machine run, and leaders lead. other is the new machine, if it leads, too.
func (m *master) tick(ctx context.Context, other string) error {
	var pods corev1.PodList
	if err := m.api.List(ctx, &pods, client.MatchingFields{"spec.nodeName": m.c.Master}); err != nil {
		return fmt.Errorf("listing pods of the legacy master: %w", err)
	}
	for file, component := range staticPods() {
		if err := m.mirror(ctx, file, component, pods.Items); err != nil {
			return fmt.Errorf("following manifest %s: %w", file, err)
		}
	}
	return errors.Join(m.serve(ctx), m.runPods(ctx, pods.Items), m.lead(ctx, other))
}

// mirror makes or removes the mirror pod of a manifest, if it is not among those that
// are there, or still is.
func (m *master) mirror(ctx context.Context, file, component string, there []corev1.Pod) error {
	pod := m.pod("k8s-"+component+"-"+m.c.Master, "docker.io/giantswarm/kube-"+component+":v1.21.5")
	pod.Labels = map[string]string{"app.kubernetes.io/name": component}
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "made"}
	if component == "api-server" {
		pod.Spec.Containers[0].Command = apiServerFlags("/etc/kubernetes/policies/audit-policy.yaml")
	}
	exists := slices.ContainsFunc(there, func(p corev1.Pod) bool { return p.Namespace == pod.Namespace && p.Name == pod.Name })
	switch wanted := m.runs(file); {
	case wanted && !exists:
		return m.create(ctx, pod)
	case !wanted && exists:
		return client.IgnoreNotFound(m.api.Delete(ctx, pod, client.GracePeriodSeconds(0)))
	default:
		return nil
	}
}

// runPods runs what is bound to the machine and is no mirror pod, once, and
// ends what is deleted.
func (m *master) runPods(ctx context.Context, pods []corev1.Pod) error {
	for i := range pods {
		pod := &pods[i]
		var err error
		switch {
		case pod.DeletionTimestamp != nil:
			err = m.remove(ctx, pod)
		case m.running[pod.UID] != nil && pod.Status.Phase == corev1.PodRunning && m.running[pod.UID].ended():
			err = m.ended(ctx, pod, m.running[pod.UID])
		case pod.Status.Phase == corev1.PodPending && pod.Annotations[corev1.MirrorPodAnnotationKey] == "" && len(pod.Spec.Containers[0].Command) > 0:
			err = m.run(ctx, pod)
		}
		if err != nil {
			return fmt.Errorf("running pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// run starts a pod that works in /etc/kubernetes of its host.
func (m *master) run(ctx context.Context, pod *corev1.Pod) error {
	main := pod.Spec.Containers[0]
	if len(pod.Spec.Volumes) != 1 || pod.Spec.Volumes[0].HostPath == nil || pod.Spec.Volumes[0].HostPath.Path != "/etc/kubernetes" ||
		main.WorkingDir != main.VolumeMounts[0].MountPath {
		return errors.New("it does not work in /etc/kubernetes")
	}
	out, err := os.CreateTemp(m.dir, "pod-*.log")
	if err != nil {
		return fmt.Errorf("making its log: %w", err)
	}
	command := exec.CommandContext(ctx, main.Command[0], main.Command[1:]...)
	command.Dir = m.dir
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	// A file, for a pipe counts as open as long as some other process is about to be started with it: a script that had ended well on a busy machine failed.
	command.Stdout, command.Stderr = out, out
	if err := errors.Join(command.Start(), out.Close()); err != nil {
		return err
	}
	p := &podProcess{command: command, log: out.Name(), done: make(chan struct{})}
	m.running[pod.UID] = p
	go func() {
		p.err = command.Wait()
		// What a script started goes with it, as in a container; most have nothing left.
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		close(p.done)
	}()
	pod.Status.Phase = corev1.PodRunning
	return client.IgnoreNotFound(m.api.Status().Update(ctx, pod))
}

// podProcess is what runs in a pod; log, a file, and err count when it is done.
type podProcess struct {
	command *exec.Cmd
	log     string
	err     error
	done    chan struct{}
}

func (p *podProcess) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ended says how a pod's process ended.
func (m *master) ended(ctx context.Context, pod *corev1.Pod, p *podProcess) error {
	said, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Errorf("reading its log: %w", err)
	}
	pod.Status.Phase = corev1.PodSucceeded
	state := corev1.ContainerStateTerminated{Reason: "Completed"}
	if p.err != nil {
		pod.Status.Phase, state = corev1.PodFailed, corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1, Message: string(said) + p.err.Error()}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{Terminated: &state}}}
	return client.IgnoreNotFound(m.api.Status().Update(ctx, pod))
}

// remove ends a deleted pod: what runs in it is asked to end, then it is gone.
func (m *master) remove(ctx context.Context, pod *corev1.Pod) error {
	if p := m.running[pod.UID]; p != nil && !p.ended() {
		_ = p.command.Process.Signal(syscall.SIGTERM) // It may just have ended.
		return nil
	}
	return client.IgnoreNotFound(m.api.Delete(ctx, pod, client.GracePeriodSeconds(0)))
}

// serve lets the API server follow its manifest.
func (m *master) serve(ctx context.Context) error {
	switch wanted := m.runs("k8s-api-server.yaml"); {
	case wanted == m.serves:
		return nil
	case wanted:
		m.serves = true
		go func() { _ = m.c.Workload.StartComponent(ctx, builder.APIServer) }() // Without its etcd it does not come up.
		return nil
	default:
		m.serves = false
		return m.c.Workload.StopComponent(ctx, builder.APIServer)
	}
}

// lead gives every Lease to who leads: whoever has it keeps it for as long as it runs.
func (m *master) lead(ctx context.Context, other string) error {
	for file, name := range leases() {
		var candidates []string
		if m.runs(file) {
			candidates = append(candidates, m.c.Master)
		}
		if other != "" {
			candidates = append(candidates, other)
		}
		lease := &coordinationv1.Lease{}
		err := m.api.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: name}, lease)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading Lease %s: %w", name, err)
		}
		holder := ""
		if lease.Spec.HolderIdentity != nil {
			holder, _, _ = strings.Cut(*lease.Spec.HolderIdentity, "_")
		}
		if len(candidates) == 0 || holder == candidates[0] || holder == candidates[len(candidates)-1] {
			continue
		}
		next := candidates[0] + "_lab"
		lease.Namespace, lease.Name, lease.Spec.HolderIdentity = metav1.NamespaceSystem, name, &next
		if apierrors.IsNotFound(err) {
			err = m.api.Create(ctx, lease)
		} else {
			err = m.api.Update(ctx, lease)
		}
		if err != nil {
			return fmt.Errorf("taking Lease %s: %w", name, err)
		}
	}
	return nil
}

// off ends the machine's programs once its pod is gone.
func (m *master) off(ctx context.Context) error {
	if m.gone {
		return nil
	}
	pod, err := m.c.world.kubelet.pod(m.c.ID, m.c.Master)
	if err == nil && pod.DeletionTimestamp == nil || client.IgnoreNotFound(err) != nil {
		return client.IgnoreNotFound(err)
	}
	m.gone = true
	for _, p := range m.running {
		_ = p.command.Process.Kill() // It may have ended.
	}
	for _, name := range []string{builder.APIServer, builder.Etcd} {
		_ = m.c.Workload.KillComponent(ctx, name) // It may have ended by itself, as a removed member of etcd does.
	}
	return nil
}

// route lets the cluster's names lead where their Ingresses do. A name without
// one, or without a backend that is ready, leads nowhere.
func (c *Cluster) route() {
	etcd, _, _, _ := c.Workload.EtcdClientFiles()
	for _, name := range []struct {
		host, legacy string
		all          *backends
	}{{c.APIDomain, c.Workload.URL(), &c.api}, {c.etcdDomain(), etcd, &c.etcdName}} {
		found, err := c.world.routes.Backends(name.host)
		if err != nil {
			found = nil // No Ingress, no Service, no endpoint: that is what tests look at.
		}
		addresses := make([]string, 0, len(found))
		for _, b := range found {
			// The legacy machine's address is only written down; its programs run here.
			if !strings.HasPrefix(b.Address, "10.199.") {
				b.Address = strings.TrimPrefix(name.legacy, "https://")
			}
			addresses = append(addresses, b.Address)
		}
		name.all.set(addresses...)
	}
}
