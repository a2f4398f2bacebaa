package desired

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// Ports on a host: the base and the number of the cluster's network.
const (
	HealthPortBase   = 23000
	DeferrerPortBase = 47000
	FlannelPortBase  = 21000
)

// Names of a VM pod's containers, and tags of their images.
const (
	EndpointUpdater  = "k8s-endpoint-updater"
	K8sKVM           = "k8s-kvm"
	K8sKVMHealth     = "k8s-kvm-health"
	ShutdownDeferrer = "shutdown-deferrer"

	k8sKVMTag, sideTag = "0.6.2", "0.1.0"
)

// Image returns the name of an image of the platform.
func (i Installation) Image(name, tag string) string {
	return i.Registry + "/giantswarm/" + name + ":" + tag
}

// Bridge is the name of a cluster's bridge on every host.
func Bridge(cluster string) string { return "br-" + cluster }

// Tap is the name of the VM's interface on a host.
func Tap(cluster string) string { return "tap-" + cluster }

// vm is what differs between the pods of a cluster.
type vm struct {
	role, id string
	index    int
	size     Size
}

// DeploymentName is also the beginning of the VM's host name.
func DeploymentName(role, node string) string { return role + "-" + node }

// Deployments are one for each VM.
func (in *Input) Deployments() ([]*appsv1.Deployment, error) {
	vms := make([]vm, 0, len(in.Spec.Cluster.Masters)+len(in.Spec.Cluster.Workers))
	for i, m := range in.Spec.Cluster.Masters {
		vms = append(vms, vm{role: Master, id: m.ID, index: i, size: in.Spec.KVM.Masters[i]})
	}
	for i, w := range in.Spec.Cluster.Workers {
		vms = append(vms, vm{role: Worker, id: w.ID, index: i, size: in.Spec.KVM.Workers[i]})
	}
	all := make([]*appsv1.Deployment, 0, len(vms))
	for _, v := range vms {
		d, err := in.deployment(v)
		if err != nil {
			return nil, fmt.Errorf("describing the Deployment of %s %s: %w", v.role, v.id, err)
		}
		all = append(all, d)
	}
	return all, nil
}

func (in *Input) deployment(v vm) (*appsv1.Deployment, error) {
	common := in.labels(map[string]string{
		"app": v.role, "node": v.id, ClusterLabel: in.ID(), OrganizationLabel: in.Spec.Cluster.Customer.ID,
	})
	own := maps.Clone(common)
	own[ManagedByLabel] = Operator
	pod := maps.Clone(common)
	pod[PodWatcherLabel] = Operator
	pod[OperatorVersionLabel] = in.Version()

	spec, err := in.podSpec(v)
	if err != nil {
		return nil, err
	}
	template := corev1.PodTemplateSpec{Spec: *spec, ObjectMeta: metav1.ObjectMeta{Labels: pod, Annotations: in.podAnnotations(v.role)}}
	// The real operator leaves these behind; they mean nothing.
	if v.role == Master {
		template.GenerateName = Master
	} else {
		template.Name = Worker
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name: DeploymentName(v.role, v.id), Namespace: in.ID(), Labels: own, Annotations: in.Versions(),
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1),
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": v.role, "cluster": in.ID(), "node": v.id}},
			Template: template,
		},
	}, nil
}

// Versions are the two annotations by which the operator knows whether a Deployment is of today.
func (in *Input) Versions() map[string]string {
	return map[string]string{ReleaseVersionAnnotation: in.Labels[ReleaseVersionLabel], BundleVersionAnnotation: in.Version()}
}

func (in *Input) podAnnotations(role string) map[string]string {
	notes := map[string]string{
		"kvm-operator.giantswarm.io/api-endpoint":   in.Spec.Cluster.Kubernetes.API.Domain,
		"kvm-operator.giantswarm.io/version-bundle": in.Version(),
		IPAnnotation: "", ServiceAnnotation: role, DrainedAnnotation: "False",
	}
	for _, name := range []string{"calico", "containerlinux", "etcd", "kubernetes"} {
		notes["kvm-operator.giantswarm.io/component-version-"+name] = in.Components[name]
	}
	return notes
}

func (in *Input) podSpec(v vm) (*corev1.PodSpec, error) {
	main, err := in.vmContainer(v)
	if err != nil {
		return nil, err
	}
	spec := &corev1.PodSpec{
		Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{Master, Worker}},
				}},
				Namespaces: []string{in.ID()}, TopologyKey: corev1.LabelHostname,
			}},
		}},
		Containers:                    []corev1.Container{in.updaterContainer(v), *main, in.healthContainer(v), in.deferrerContainer()},
		HostNetwork:                   true,
		NodeSelector:                  map[string]string{"role": v.role},
		ServiceAccountName:            in.ID(),
		TerminationGracePeriodSeconds: ptr.To[int64](600),
		Volumes:                       in.volumes(v),
	}
	if v.role == Worker {
		spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: NodeReadyCondition}}
	}
	return spec, nil
}

func privileged() *corev1.SecurityContext { return &corev1.SecurityContext{Privileged: new(true)} }

func field(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
}

func (in *Input) updaterContainer(v vm) corev1.Container {
	return corev1.Container{
		Name: EndpointUpdater, Image: in.Image(EndpointUpdater, sideTag), ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{
			"/opt/k8s-endpoint-updater", "update",
			"--provider.bridge.name=" + Bridge(in.ID()),
			"--service.kubernetes.cluster.namespace=" + in.ID(),
			"--service.kubernetes.cluster.service=" + v.role,
			"--service.kubernetes.inCluster=true",
		},
		Env: []corev1.EnvVar{field("POD_NAME", "metadata.name")}, SecurityContext: privileged(),
	}
}

func (in *Input) healthContainer(v vm) corev1.Container {
	env := []corev1.EnvVar{
		{Name: "LISTEN_ADDRESS", Value: fmt.Sprintf("http://127.0.0.1:%d", HealthPortBase+in.VNI())},
		{Name: "NETWORK_ENV_FILE_PATH", Value: "/run/flannel/networks/" + Bridge(in.ID()) + ".env"},
	}
	if v.role == Master {
		env = append([]corev1.EnvVar{{Name: "CHECK_K8S_API", Value: "true"}}, env...)
	}
	return corev1.Container{
		Name: K8sKVMHealth, Image: in.Image(K8sKVMHealth, sideTag), ImagePullPolicy: corev1.PullAlways, Env: env,
		SecurityContext: privileged(), VolumeMounts: []corev1.VolumeMount{{Name: "flannel", MountPath: "/run/flannel"}},
	}
}

func (in *Input) deferURL() string {
	return fmt.Sprintf("http://127.0.0.1:%d/v1/defer/", DeferrerPortBase+in.VNI())
}

func (in *Input) deferrerContainer() corev1.Container {
	port := DeferrerPortBase + in.VNI()
	return corev1.Container{
		Name: ShutdownDeferrer, Image: in.Image(ShutdownDeferrer, sideTag), ImagePullPolicy: corev1.PullAlways,
		Args: []string{"daemon", fmt.Sprintf("--server.listen.address=http://127.0.0.1:%d", port)},
		Env:  []corev1.EnvVar{field("MY_POD_NAME", "metadata.name"), field("MY_POD_NAMESPACE", "metadata.namespace")},
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
			Exec: &corev1.ExecAction{Command: []string{"/pre-shutdown-hook", in.deferURL()}},
		}},
		LivenessProbe: healthProbe(port, 500),
	}
}

func healthProbe(port int, delay int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Host: "127.0.0.1", Path: "/healthz", Port: intstr.FromInt(port), Scheme: corev1.URISchemeHTTP,
		}},
		FailureThreshold: 4, InitialDelaySeconds: delay, PeriodSeconds: 35, SuccessThreshold: 1, TimeoutSeconds: 5,
	}
}

// vmContainer is the VM itself.
func (in *Input) vmContainer(v vm) (*corev1.Container, error) {
	memory, err := podMemory(v)
	if err != nil {
		return nil, err
	}
	limits := corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewQuantity(int64(v.size.CPUs), resource.DecimalSI), corev1.ResourceMemory: memory,
	}
	health := HealthPortBase + in.VNI()
	mounts := []corev1.VolumeMount{{Name: "cloud-config", MountPath: "/cloudconfig/"}}
	if v.role == Master {
		mounts = append(mounts, corev1.VolumeMount{Name: "etcd-data", MountPath: "/etc/kubernetes/data/etcd/"})
	}
	mounts = append(mounts, corev1.VolumeMount{Name: "images", MountPath: "/usr/code/images/"}, corev1.VolumeMount{Name: "rootfs", MountPath: "/usr/code/rootfs/"})
	if v.role == Worker {
		for _, h := range v.size.HostVolumes {
			mounts = append(mounts, corev1.VolumeMount{Name: h.MountTag, MountPath: h.HostPath})
		}
	}
	return &corev1.Container{
		Name: K8sKVM, Image: in.Image(K8sKVM, k8sKVMTag), ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{v.role},
		Env:       in.vmEnv(v),
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/qemu-shutdown", in.deferURL()}}}},
		// About 140 seconds of failure end the VM.
		LivenessProbe: healthProbe(health, 500), ReadinessProbe: healthProbe(health, 100),
		Resources:       corev1.ResourceRequirements{Limits: limits, Requests: limits.DeepCopy()},
		SecurityContext: privileged(), VolumeMounts: mounts,
	}, nil
}

func (in *Input) vmEnv(v vm) []corev1.EnvVar {
	docker, kubelet := diskSizes(v)
	env := []corev1.EnvVar{
		{Name: "CORES", Value: strconv.Itoa(v.size.CPUs)},
		{Name: "FLATCAR_VERSION", Value: in.Components["containerlinux"]},
		{Name: "FLATCAR_CHANNEL", Value: "stable"},
		{Name: "DISK_DOCKER", Value: docker},
		{Name: "DISK_KUBELET", Value: kubelet},
		{Name: "DISK_OS", Value: "5G"},
		{Name: "DNS_SERVERS", Value: in.DNSServers},
		field("HOSTNAME", "metadata.name"),
		{Name: "MEMORY", Value: v.size.Memory},
		{Name: "NETWORK_BRIDGE_NAME", Value: Bridge(in.ID())},
		{Name: "NETWORK_TAP_NAME", Value: Tap(in.ID())},
		{Name: "NTP_SERVERS", Value: in.NTPServers},
		{Name: "ROLE", Value: v.role},
		{Name: "CLOUD_CONFIG_PATH", Value: "/cloudconfig/user_data"},
	}
	if v.role == Master {
		return append(env, corev1.EnvVar{Name: "DEBUG", Value: "true"})
	}
	paths := make([]string, 0, len(v.size.HostVolumes))
	for _, h := range v.size.HostVolumes {
		paths = append(paths, h.MountTag+":"+h.HostPath)
	}
	return append(env, corev1.EnvVar{Name: "HOST_DATA_VOLUME_PATHS", Value: strings.Join(paths, ",")})
}

// diskSizes are those of the docker and the kubelet disk.
func diskSizes(v vm) (docker, kubelet string) {
	switch {
	case v.role == Worker && v.size.DockerVolumeSizeGB > 0:
		size := strconv.Itoa(v.size.DockerVolumeSizeGB) + "G"
		return size, size
	case v.role == Worker && v.size.Disk > 0:
		size := strconv.FormatFloat(v.size.Disk, 'f', -1, 64) + "G"
		return size, size
	default:
		return "50G", "5G"
	}
}

// podMemory is the VM's memory with what QEMU needs besides: for workers it grows with the VM.
func podMemory(v vm) (resource.Quantity, error) {
	const mega, giga = int64(1e6), int64(1e9)
	memory, err := resource.ParseQuantity(v.size.Memory)
	if err != nil {
		return memory, fmt.Errorf("reading the memory size %q: %w", v.size.Memory, err)
	}
	if v.role == Master {
		memory.Add(*resource.NewQuantity((1024+512)*mega, resource.DecimalSI))
		return memory, nil
	}
	gb := (memory.Value() + giga - 1) / giga
	return *resource.NewQuantity((gb*1024+512+768*(2+gb/12))*mega, resource.DecimalSI), nil
}

func (in *Input) volumes(v vm) []corev1.Volume {
	hostPath := func(name, path string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}
	}
	claim := func(name, claim string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}
	}
	all := []corev1.Volume{{Name: "cloud-config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: ConfigMapName(v.role, in.ID(), v.id)},
	}}}}
	if v.role == Master {
		if in.Spec.KVM.K8sKVM.StorageType == "persistentVolume" {
			all = append(all, claim("etcd-data", etcdClaim(in.ID(), v.index)))
		} else {
			// Nothing pins the pod to the host that has this directory.
			all = append(all, hostPath("etcd-data", fmt.Sprintf("/home/core/volumes/%s/k8s-master-vm%d", in.ID(), v.index)))
		}
	}
	all = append(all, hostPath("images", "/var/lib/flatcar-kvm-images"),
		corev1.Volume{Name: "rootfs", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		hostPath("flannel", "/run/flannel"))
	if v.role == Worker {
		for _, h := range v.size.HostVolumes {
			all = append(all, claim(h.MountTag, hostVolumeClaim(in.ID(), v.index, h.MountTag)))
		}
	}
	return all
}
