package check

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/utils/ptr"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// ---- etcd.

// storage is the etcd storage mode the KVMConfig asks for: empty means hostPath to the operator.
func storage(v *view) string {
	return cmp.Or(v.config.Spec.KVM.K8sKVM.StorageType, storageHostPath)
}

func etcdStorageKnown(v *view) verdict {
	want := storage(v)
	if want != storageHostPath && want != storagePersistent {
		return failed([]string{"spec.kvm.k8sKVM.storageType"}, "the storage type %q is unknown", want)
	}
	var items []string
	for _, node := range nodesOf(v, legacy.Master) {
		have := "none"
		for _, volume := range node.Pod.Object.Spec.Volumes {
			switch {
			case volume.Name != etcdVolume:
			case volume.HostPath != nil:
				have = storageHostPath
			case volume.PersistentVolumeClaim != nil:
				have = storagePersistent
			default:
				have = "another kind"
			}
		}
		if have != want {
			items = append(items, fmt.Sprintf("%s: etcd's volume is %s", node.Pod.Ref, have))
		}
	}
	if len(items) > 0 {
		return failed(items, "the KVMConfig says %s, the running VM has something else", want)
	}
	if v.config.Spec.KVM.K8sKVM.StorageType == "" {
		return held("%s, because the KVMConfig names none", want)
	}
	return held("%s", want)
}

func etcdStays(v *view) verdict {
	if storage(v) != storageHostPath {
		return held("etcd is on a volume that follows the master")
	}
	holding := vmHosts(v)
	var hosts []string
	for name, host := range v.hosts {
		if host.Labels[hostLabelRole] != string(legacy.Master) {
			continue
		}
		switch {
		case slices.ContainsFunc(holding[name], func(node legacy.Node) bool { return node.Role == legacy.Master }):
			hosts = append(hosts, name+" (has the data)")
		case host.Schedulable:
			hosts = append(hosts, name)
		}
	}
	if len(hosts) > 1 {
		return failed(hosts, "etcd is a directory of one host, and %d hosts could get the master's pod: a re-created master would start with an empty etcd", len(hosts))
	}
	return held("only one host can hold the master")
}

func etcdClaimBound(v *view) verdict {
	if storage(v) != storagePersistent {
		return held("etcd has no volume claim: its storage is %s", storage(v))
	}
	var items []string
	bound := 0
	for _, node := range v.cluster.Masters() {
		name := fmt.Sprintf("pvc-master-etcd-%s-%d", v.cluster.ID, node.Position)
		if problem := claimProblem(v, name); problem != "" {
			items = append(items, problem)
			continue
		}
		bound++
	}
	if len(items) > 0 {
		return failed(items, "etcd's volume is not in order")
	}
	return held("%s bound", plural(bound, "claim is", "claims are"))
}

// claimProblem says what is wrong with a claim, nothing when it is bound to a volume that knows of it.
func claimProblem(v *view, name string) string {
	n := slices.IndexFunc(v.cluster.Claims, func(doc legacy.Doc[corev1.PersistentVolumeClaim]) bool { return doc.Object.Name == name })
	if n < 0 {
		return "PersistentVolumeClaim " + name + " is missing"
	}
	claim := &v.cluster.Claims[n].Object
	switch {
	case claim.DeletionTimestamp != nil:
		return "PersistentVolumeClaim " + name + " is being deleted"
	case claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "":
		return fmt.Sprintf("PersistentVolumeClaim %s is %s", name, cmp.Or(string(claim.Status.Phase), "not bound"))
	}
	volume := volumeOf(v, claim.Spec.VolumeName)
	if volume == nil {
		return "PersistentVolume " + claim.Spec.VolumeName + " of claim " + name + " is missing"
	}
	if claimed := volume.Spec.ClaimRef; claimed == nil || claimed.Name != name || claimed.Namespace != claim.Namespace {
		return "PersistentVolume " + volume.Name + " does not point back at claim " + name
	}
	return ""
}

// noProvisioner is what storage classes name whose volumes are made by hand (Kubernetes, volume.NotSupportedProvisioner).
const noProvisioner = "kubernetes.io/no-provisioner"

// etcdVolumeFree compares what the running master's claim asks for with the volumes that nobody has claimed.
func etcdVolumeFree(v *view) verdict {
	if storage(v) != storagePersistent {
		return held("etcd has no volume claim: its storage is %s", storage(v))
	}
	name := fmt.Sprintf("pvc-master-etcd-%s-%d", v.cluster.ID, 0)
	n := slices.IndexFunc(v.cluster.Claims, func(doc legacy.Doc[corev1.PersistentVolumeClaim]) bool { return doc.Object.Name == name })
	if n < 0 {
		return held("there is no claim %s to compare with, see CHK-ETCD-012", name)
	}
	claim := &v.cluster.Claims[n].Object
	class, size := cmp.Or(ptr.Deref(claim.Spec.StorageClassName, ""), claim.Annotations[corev1.BetaStorageClassAnnotation]), claim.Spec.Resources.Requests.Storage()
	provisioner, known := v.Fleet.Provisioners[class]
	if known && provisioner != noProvisioner {
		return held("storage class %s makes volumes by %s", class, provisioner)
	}
	var fitting, others []string
	for _, volume := range v.Fleet.Volumes {
		switch {
		case volume.Class != class:
		case volume.Bytes < size.Value():
			others = append(others, volume.Name+" is too small")
		case !slices.Contains(volume.Modes, corev1.ReadWriteOnce):
			others = append(others, volume.Name+" cannot be mounted by one machine alone (ReadWriteOnce)")
		case volume.Released != "":
			// A machine that was taken back leaves such a one, with an etcd in it that is no member any more.
			others = append(others, fmt.Sprintf(`%s was let go by claim %s and keeps its data: have it emptied, then free it with kubectl patch pv %[1]s --type json -p '[{"op":"remove","path":"/spec/claimRef"}]'`, volume.Name, volume.Released))
		default:
			fitting = append(fitting, volume.Name)
		}
	}
	if len(fitting) == 0 {
		return failed(others, "no volume of class %q with %s is free, and nothing makes one", class, size)
	}
	return held("%s free for the new control plane's etcd", plural(len(fitting), "volume is", "volumes are"))
}

func volumeOf(v *view, name string) *corev1.PersistentVolume {
	for n := range v.cluster.Volumes {
		if v.cluster.Volumes[n].Object.Name == name {
			return &v.cluster.Volumes[n].Object
		}
	}
	return nil
}

func etcdSound(v *view) verdict {
	have := v.running("etcd")
	switch {
	case have == "":
		return failed(nil, "etcd's version is not known")
	case older(have, "3.4.0"):
		return failed([]string{"etcd " + have}, "etcd %s has no learners: a new member could only join as a voter, and a slow one would stop the cluster", have).as(Block)
	case !older(have, "3.5.0") && older(have, "3.5.3"):
		return failed([]string{"etcd " + have}, "etcd %s can lose the consistency of its data after a crash; the takeover saves it before it adds a member, and compares what both hold before the old one goes", have)
	case older(have, "3.5.0"):
		return held("%s; the new member is of the same line first", have)
	default:
		return held("%s", have)
	}
}

// ---- control plane.

func oneMaster(v *view) verdict {
	masters := v.cluster.Masters()
	items := make([]string, 0, len(masters))
	for _, node := range masters {
		items = append(items, name(node))
	}
	if len(masters) != 1 {
		return failed(items, "%s; the takeover is made for one, which is all the legacy operator ever ran", plural(len(masters), "master", "masters"))
	}
	return held("%s", items[0])
}

func secondServer(v *view) verdict {
	ready, _, ok := v.endpoints(endpointsMaster)
	if ok && len(ready) > 1 {
		return held("%d servers stand behind the API's name: %s", len(ready), strings.Join(ready, ", "))
	}
	return failed(nil, "%s: while etcd moves to the new control plane, both members are needed, and the failure of one stops the API", plural(len(v.cluster.Masters()), "master", "masters"))
}

// JoinsAsLearner is the check of what more control planes cost. It counts whenever they are made.
const JoinsAsLearner = "CHK-CP-006"

func joinsAsLearner(v *view) verdict {
	switch more := v.ControlPlanes - 1; {
	case more < 1:
		return held("one control plane, as before")
	case v.JoinsWithVote:
		return failed(nil, "%s asked for: while the first of them joins with kubeadm %s, nothing can be written to the API", plural(more, "more control plane is", "more control planes are"), v.TargetKubernetes)
	default:
		return held("kubeadm %s joins etcd as a learner", v.TargetKubernetes)
	}
}

func flagsAsConfigured(v *view) verdict {
	if len(v.flags) == 0 {
		return failed([]string{fileAPIServer}, "the API server's manifest is missing in the boot configuration, or has no flags")
	}
	spec := &v.config.Spec.Cluster
	var items []string
	want := func(flag, value string) {
		if have := v.flags[flag]; have != value {
			items = append(items, fmt.Sprintf("--%s is %q, the KVMConfig says %q", flag, have, value))
		}
	}
	want("etcd-prefix", spec.Etcd.Prefix)
	want("service-cluster-ip-range", spec.Kubernetes.API.ClusterIPRange)
	want("secure-port", strconv.Itoa(spec.Kubernetes.API.SecurePort))
	if issuer, given := v.flags["service-account-issuer"]; given && issuer != "https://"+spec.Kubernetes.API.Domain {
		items = append(items, fmt.Sprintf("--service-account-issuer is %q, not the API's name", issuer))
	}
	if spec.Etcd.Prefix == "" {
		items = append(items, "the KVMConfig names no etcd prefix")
	}
	if len(items) > 0 {
		return failed(items, "the API server is not run as the KVMConfig says")
	}
	return held("etcd prefix %s, services %s, port %d", spec.Etcd.Prefix, spec.Kubernetes.API.ClusterIPRange, spec.Kubernetes.API.SecurePort)
}

func mirrorPodsAdmitted(v *view) verdict {
	if !slices.Contains(strings.Split(v.flags["enable-admission-plugins"], ","), "PodSecurityPolicy") {
		return held("the API server does not admit pods by PodSecurityPolicy")
	}
	if v.cluster.Inside != nil {
		for _, object := range v.cluster.Inside.Objects {
			if object.Ref.Kind != "PodSecurityPolicy" {
				continue
			}
			spec, _ := object.Raw["spec"].(map[string]any)
			if privileged, _ := spec["privileged"].(bool); privileged {
				return held("PodSecurityPolicy %s admits privileged pods; phase 4 binds it for the new node's mirror pods", object.Ref.Name)
			}
		}
	}
	return failed(nil, "PodSecurityPolicy admission is on, and no privileged policy was seen: the new node's static pods would stay invisible to Cluster API; phase 4 creates one with its binding")
}

// ---- network.

func namesLead(v *view) verdict {
	spec := &v.config.Spec.Cluster
	var items []string
	for _, want := range []struct {
		ingress, host string
		port          int
	}{
		{"api", spec.Kubernetes.API.Domain, spec.Kubernetes.API.SecurePort},
		{"etcd", spec.Etcd.Domain, 2379},
	} {
		n := slices.IndexFunc(v.cluster.Ingresses, func(one legacy.Doc[networkingv1.Ingress]) bool { return one.Object.Name == want.ingress })
		if n < 0 {
			items = append(items, "Ingress "+want.ingress+" is missing")
			continue
		}
		ingress := &v.cluster.Ingresses[n].Object
		if ingress.Annotations[annotationPassthru] != "true" {
			items = append(items, v.cluster.Ingresses[n].Ref.String()+" does not pass TLS through")
		}
		leads := false
		for _, rule := range ingress.Spec.Rules {
			if rule.Host != want.host || rule.HTTP == nil {
				continue
			}
			for _, path := range rule.HTTP.Paths {
				backend := path.Backend.Service
				leads = leads || (backend != nil && backend.Name == endpointsMaster && int(backend.Port.Number) == want.port)
			}
		}
		if !leads {
			items = append(items, fmt.Sprintf("%s does not lead %s to Service master port %d", v.cluster.Ingresses[n].Ref, want.host, want.port))
		}
	}
	if !slices.ContainsFunc(v.cluster.Services, func(one legacy.Doc[corev1.Service]) bool { return one.Object.Name == endpointsMaster }) {
		items = append(items, "Service master is missing")
	}
	if len(items) > 0 {
		return failed(items, "the names do not all lead to the master")
	}
	return held("%s and %s", spec.Kubernetes.API.Domain, spec.Etcd.Domain)
}

func endpointsMatch(v *view) verdict {
	var items []string
	for _, role := range []legacy.Role{legacy.Master, legacy.Worker} {
		ready, notReady, ok := v.endpoints(string(role))
		var want []string
		for _, node := range nodesOf(v, role) {
			if ip(node) == "" {
				items = append(items, fmt.Sprintf("%s has no address in annotation %s", node.Pod.Ref, annotationIP))
				continue
			}
			want = append(want, ip(node))
		}
		if len(want) > 0 && !ok {
			items = append(items, fmt.Sprintf("Endpoints %s is missing", role))
			continue
		}
		for _, address := range want {
			if !slices.Contains(ready, address) && !slices.Contains(notReady, address) {
				items = append(items, fmt.Sprintf("Endpoints %s lacks %s", role, address))
			}
		}
		for _, address := range append(ready, notReady...) {
			if !slices.Contains(want, address) {
				items = append(items, fmt.Sprintf("Endpoints %s has %s, which is no VM of the cluster", role, address))
			}
		}
	}
	if len(items) > 0 {
		return failed(items, "the Services do not lead to exactly the cluster's VMs")
	}
	return held("Endpoints master and worker, against the addresses in the pods' annotations")
}

func networkAlone(v *view) verdict {
	vni := v.config.Spec.KVM.Network.Flannel.VNI
	if vni <= 0 {
		return failed([]string{"spec.kvm.network.flannel.vni"}, "the KVMConfig names no VXLAN id")
	}
	var items []string
	compared := 0
	for _, other := range v.Neighbours {
		if other.ID == v.cluster.ID || other.VNI <= 0 {
			continue
		}
		compared++
		switch distance := vni - other.VNI; {
		case distance == 0:
			items = append(items, fmt.Sprintf("%s has VXLAN id %d too", other.ID, vni))
		case portsClash(distance):
			items = append(items, fmt.Sprintf("%s has VXLAN id %d: its ports on the hosts are those of this cluster", other.ID, other.VNI))
		}
	}
	if len(items) > 0 {
		return failed(items, "VXLAN id %d collides with %s", vni, plural(len(items), "cluster", "clusters"))
	}
	return held("VXLAN id %d, compared with %s", vni, plural(compared, "other cluster", "other clusters"))
}

// portsClash tells whether two clusters whose VXLAN ids are that far apart use one port of a shared host:
// each takes 21000, 23000 and 47000 plus its id.
func portsClash(distance int) bool {
	return slices.Contains([]int{2000, -2000, 24000, -24000, 26000, -26000}, distance)
}

func calicoInAPI(v *view) verdict {
	kind, from := calicoDatastore(v)
	switch kind {
	case "kubernetes":
		return held("by %s", from)
	case "":
		return failed(nil, "neither the release nor the boot configuration says where Calico keeps its data")
	default:
		return failed(nil, "Calico keeps its data in etcd (by %s), reached by the etcd name with a legacy certificate: pods would lose their network when the legacy etcd member goes", from)
	}
}

// calicoDatastore reads Calico's datastore from its manifest, else from the release: up to v14 it was etcd.
func calicoDatastore(v *view) (kind, from string) {
	if file := v.boot.File(fileCalico); file != nil {
		for line := range strings.Lines(string(file.Content)) {
			text := strings.Trim(strings.TrimSpace(line), ",")
			if value, ok := strings.CutPrefix(text, "datastore_type:"); ok {
				value = strings.Trim(strings.TrimSpace(value), `"'`)
				if value != "kubernetes" {
					value = "etcd"
				}
				return value, "the boot configuration"
			}
		}
		if strings.Contains(string(file.Content), "etcd_endpoints") {
			return "etcd", "the boot configuration"
		}
	}
	if release := v.release(); release != "" {
		if older(release, "15.0.0") {
			return "etcd", "release " + release
		}
		return "kubernetes", "release " + release
	}
	return "", ""
}

func sameNetwork(v *view) verdict {
	if v.cluster.Flannel == nil {
		return failed([]string{"FlannelConfig " + v.cluster.ID}, "the FlannelConfig is missing: the network of the VMs has no owner")
	}
	have, want := v.cluster.Flannel.Object.Spec.Flannel.Spec.VNI, v.config.Spec.KVM.Network.Flannel.VNI
	if have != want {
		return failed([]string{v.cluster.Flannel.Ref.String()}, "the FlannelConfig has VXLAN id %d, the KVMConfig %d", have, want)
	}
	return held("VXLAN id %d, network %s", have, v.cluster.Flannel.Object.Spec.Flannel.Spec.Network)
}
