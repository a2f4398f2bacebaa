package vmpod

import (
	"maps"
	"path"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const (
	// ManagedByLabel is on everything this provider makes.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedBy is its value.
	ManagedBy = "capk-controller"

	nameLabel     = "app.kubernetes.io/name"
	instanceLabel = "app.kubernetes.io/instance"
	partOfLabel   = "app.kubernetes.io/part-of"
	nameValue     = "virtual-machine"

	volumeDisks     = "disks"
	volumeRun       = "run"
	volumeBootstrap = "bootstrap"
	volumeImages    = "images"
	volumeEtcd      = "etcd"
	volumeShare     = "share-"

	kindMachine = "KVMMachine"

	// How much the scheduler minds machines of a cluster on one host, of 100.
	weightOfMachines      = 50
	weightOfControlPlanes = 100
)

// Labels of everything that belongs to one machine.
func Labels(in *Input) map[string]string {
	return map[string]string{
		clusterv1.ClusterNameLabel: in.Cluster.Name,
		infrav1.RoleLabel:          string(in.Role()),
		infrav1.MachineLabel:       in.Machine.Name,
		ManagedByLabel:             ManagedBy,
		nameLabel:                  nameValue,
		instanceLabel:              in.Machine.Name,
		partOfLabel:                in.Cluster.Name,
	}
}

// OwnerReference makes an object go with its KVMMachine.
func OwnerReference(m *infrav1.KVMMachine) metav1.OwnerReference {
	return *metav1.NewControllerRef(m, infrav1.GroupVersion().WithKind(kindMachine))
}

// Pod is the one pod of a machine. Its errors are of type InvalidError.
func Pod(in *Input, s *Settings) (*corev1.Pod, error) {
	// Pod name, host name and label values all carry it; the shortest limit counts.
	if problems := validation.IsDNS1123Label(in.Machine.Name); len(problems) > 0 {
		return nil, invalid("the name %q cannot be a host name: %s", in.Machine.Name, problems[0])
	}
	config, err := Config(in, s)
	if err != nil {
		return nil, err
	}
	encoded, err := contract.EncodeConfig(config)
	if err != nil {
		return nil, &InvalidError{Problem: err.Error()}
	}
	affinity, err := affinityOf(in)
	if err != nil {
		return nil, err
	}
	volumes, mounts := volumesOf(in, s)
	resources := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(config.CPUs), resource.DecimalSI),
		corev1.ResourceMemory: s.PodMemory(config.MemoryBytes, config.CPUs),
	}
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            in.Machine.Name,
			Namespace:       in.Machine.Namespace,
			Labels:          Labels(in),
			OwnerReferences: []metav1.OwnerReference{OwnerReference(in.Machine)},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name:            contract.Container,
				Image:           s.Image,
				ImagePullPolicy: s.ImagePullPolicy,
				Command:         []string{contract.Program, "run"},
				Env:             []corev1.EnvVar{{Name: contract.ConfigVariable, Value: encoded}},
				// The scheduler, the kubelet and QEMU work with the same numbers.
				Resources:                corev1.ResourceRequirements{Requests: resources, Limits: maps.Clone(resources)},
				VolumeMounts:             mounts,
				LivenessProbe:            probe(s.Live, "live"),
				ReadinessProbe:           probe(s.Ready, "ready"),
				TerminationMessagePath:   contract.TerminationLog,
				TerminationMessagePolicy: corev1.TerminationMessageReadFile,
				SecurityContext:          &corev1.SecurityContext{Privileged: new(true)},
			}},
			Volumes:                       volumes,
			RestartPolicy:                 corev1.RestartPolicyAlways,
			PriorityClassName:             s.PriorityClass,
			TerminationGracePeriodSeconds: new(s.GraceSeconds()),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			NodeSelector:                  in.Machine.Spec.NodeSelector,
			Affinity:                      affinity,
			Tolerations:                   tolerations(),
			ReadinessGates:                []corev1.PodReadinessGate{{ConditionType: infrav1.NodeReadinessGate}},
		},
	}, nil
}

// GuestIP is the address of the guest in a pod: the launcher hands it the pod's IPv4 address and no other, whichever family comes first in the management
// cluster. A pod without one has what there is.
func GuestIP(pod *corev1.Pod) string {
	for _, ip := range pod.Status.PodIPs {
		if netutils.IsIPv4String(ip.IP) {
			return ip.IP
		}
	}
	return pod.Status.PodIP
}

// probe asks the launcher through its socket. The pod's address is the guest's, so nothing could be asked over the network.
func probe(p Probe, what string) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{contract.Program, "probe", what}}},
		PeriodSeconds:    p.PeriodSeconds,
		TimeoutSeconds:   p.TimeoutSeconds,
		FailureThreshold: p.FailureThreshold,
		SuccessThreshold: 1,
	}
}

// tolerations keep a machine on a host that does not answer, for as long as that lasts. After five minutes Kubernetes would delete its pod, and the disks with it, past disruption budgets
// and past the look at etcd's majority; several hosts behind one broken switch would lose a cluster. The workload cluster's Node says that the machine is silent, and health checks replace
// machines one at a time.
func tolerations() []corev1.Toleration {
	return []corev1.Toleration{
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	}
}

// affinityOf places the machine: into its failure domain if it has one, and apart from the cluster's other machines.
func affinityOf(in *Input) (*corev1.Affinity, error) {
	affinity := &corev1.Affinity{PodAntiAffinity: apart(in)}
	if domain := in.Owner.Spec.FailureDomain; domain != "" {
		if in.FailureDomainLabel == "" {
			return nil, invalid("the Machine wants failure domain %q, but the KVMCluster's spec.failureDomainLabel is empty: "+
				"set it, or take the failure domain off the Machine's template", domain)
		}
		affinity.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: in.FailureDomainLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{domain},
			}}}},
		}}
	}
	return affinity, nil
}

// apart keeps a host from holding two machines of a cluster while another has room: the scheduler spreads pods by itself only for Services and sets of replicas, and machines belong to
// neither. Legacy machines never share a host, and wait where each has one already; these rather share than wait.
// Two control planes on one host weigh more than anything else, for with it etcd may lose its majority.
func apart(in *Input) *corev1.PodAntiAffinity {
	ofCluster := map[string]string{clusterv1.ClusterNameLabel: in.Cluster.Name}
	anti := &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
		Weight:          weightOfMachines,
		PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: ofCluster}},
	}}}
	if in.Role() == contract.RoleControlPlane {
		peers := maps.Clone(ofCluster)
		peers[infrav1.RoleLabel] = string(contract.RoleControlPlane)
		anti.PreferredDuringSchedulingIgnoredDuringExecution = append(anti.PreferredDuringSchedulingIgnoredDuringExecution, corev1.WeightedPodAffinityTerm{
			Weight:          weightOfControlPlanes,
			PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: peers}},
		})
	}
	return anti
}

// volumesOf lists the volumes and where the launcher finds them.
func volumesOf(in *Input, s *Settings) ([]corev1.Volume, []corev1.VolumeMount) {
	var (
		volumes []corev1.Volume
		mounts  []corev1.VolumeMount
	)
	add := func(name, at string, readOnly bool, source corev1.VolumeSource) {
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: source})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: readOnly})
	}
	add(volumeDisks, contract.DisksDir, false, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	add(volumeRun, contract.RunDir, false, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
		Medium: corev1.StorageMediumMemory, SizeLimit: resource.NewQuantity(runDirLimit, resource.BinarySI),
	}})
	add(volumeBootstrap, contract.BootstrapDir, true, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: ptr.Deref(in.Owner.Spec.Bootstrap.DataSecretName, ""), DefaultMode: ptr.To[int32](0o400),
	}})
	add(volumeImages, contract.ImagesDir, true, hostPath(s.ImageDir, corev1.HostPathDirectory))
	if hasEtcdVolume(in) {
		add(volumeEtcd, contract.EtcdDir, false, etcdSource(in))
	}
	for i := range in.Machine.Spec.HostVolumes {
		v := &in.Machine.Spec.HostVolumes[i]
		source := hostPath(v.HostPath, corev1.HostPathDirectoryOrCreate)
		if v.ClaimName != "" {
			source = claim(v.ClaimName)
		}
		// Tags may hold characters that names of volumes may not.
		add(volumeShare+strconv.Itoa(i), path.Join(contract.SharesDir, v.MountTag), false, source)
	}
	return volumes, mounts
}

func etcdSource(in *Input) corev1.VolumeSource {
	if v := in.Machine.Spec.EtcdVolume; v.HostPath != "" {
		return hostPath(path.Join(v.HostPath, in.Machine.Name), corev1.HostPathDirectoryOrCreate)
	}
	return claim(ClaimName(in.Machine))
}

func hostPath(dir string, kind corev1.HostPathType) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: &kind}}
}

func claim(name string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}
