package translate

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// Replacements are the Nodes that take the place of the cluster's, by node id, with the labels and taints that kubelet, kubeadm and Cluster API give them. Labels whose value only the machine
// knows, as its name and its address, have an empty one. Nodes for which nothing could be translated are missing.
func (r *Result) Replacements(cluster *legacy.Cluster) (map[string]*corev1.Node, error) {
	made, out := map[string]*corev1.Node{}, map[string]*corev1.Node{}
	for i := range cluster.Nodes {
		node := &cluster.Nodes[i]
		from := r.Workers[node.ID]
		if node.Role == legacy.Master {
			from = cluster.ID
		}
		if _, known := made[from]; !known {
			var err error
			if node.Role == legacy.Master {
				made[from], err = r.futureControlPlane(from)
			} else {
				made[from], err = r.futureWorker(from)
			}
			if err != nil {
				return nil, err
			}
		}
		if made[from] != nil {
			out[node.ID] = made[from]
		}
	}
	return out, nil
}

// Endpoint is the API's name, by which new machines join; empty when it could not be translated. NameServers are those that they are given, each once, in the order of their templates; none where
// machines have those of their host.
func (r *Result) Endpoint() (name string, nameServers []string) {
	for _, o := range r.Objects {
		switch o.GetKind() {
		case "KVMCluster":
			// There is another one for what comes last, which does not say it again.
			host, _, _ := unstructured.NestedString(o.Object, "spec", "controlPlaneEndpoint", "host")
			name = cmp.Or(name, host)
		case "KVMMachineTemplate":
			servers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "dns", "servers")
			for _, server := range servers {
				if address, ok := server.(string); ok && !slices.Contains(nameServers, address) {
					nameServers = append(nameServers, address)
				}
			}
		}
	}
	return name, nameServers
}

func (r *Result) futureControlPlane(name string) (*corev1.Node, error) {
	o := r.Object("KubeadmControlPlane", name)
	if o == nil {
		return nil, nil //nolint:nilnil // A broken master has no successor, which the translation tells.
	}
	var typed controlplanev1.KubeadmControlPlane
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed); err != nil {
		return nil, err //nolint:wrapcheck // The caller knows no more, and the message names the field.
	}
	node := future(&typed.Spec.KubeadmConfigSpec.InitConfiguration.NodeRegistration, nil)
	// Kubernetes, cmd/kubeadm/app/phases/markcontrolplane.
	node.Labels["node-role.kubernetes.io/control-plane"], node.Labels[corev1.LabelNodeExcludeBalancers] = "", ""
	if v, err := version.ParseGeneric(r.TargetKubernetes); err == nil && v.LessThan(version.MajorMinor(1, 24)) {
		node.Labels[MasterTaint] = ""
	}
	return node, nil
}

func (r *Result) futureWorker(name string) (*corev1.Node, error) {
	deployment, template := r.Object("MachineDeployment", name), r.Object("KubeadmConfigTemplate", name)
	if deployment == nil || template == nil {
		return nil, nil //nolint:nilnil // A worker without boot configuration has no successor, which the translation tells.
	}
	var owner clusterv1.MachineDeployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(deployment.Object, &owner); err != nil {
		return nil, err //nolint:wrapcheck // See above.
	}
	var typed bootstrapv1.KubeadmConfigTemplate
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template.Object, &typed); err != nil {
		return nil, err //nolint:wrapcheck // See above.
	}
	return future(&typed.Spec.Template.Spec.JoinConfiguration.NodeRegistration, owner.Spec.Template.Labels), nil
}

// unnamed stands for a name that is not known yet. It is not empty, because an affinity to a Node's name is not looked at where the Node has none (k8s.io/component-helpers v0.36, nodeaffinity).
const unnamed = "to-come"

// future is a Node that a kubelet registers. The labels it always sets are those of Kubernetes, pkg/kubelet/kubelet_node_status.go; those of its Machine come from Cluster API.
func future(registration *bootstrapv1.NodeRegistrationOptions, machine map[string]string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: unnamed, Labels: map[string]string{
		corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux", "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", corev1.LabelHostname: "",
	}}}
	for _, arg := range registration.KubeletExtraArgs {
		if arg.Name != "node-labels" || arg.Value == nil {
			continue
		}
		for word := range strings.SplitSeq(*arg.Value, ",") {
			name, value, _ := strings.Cut(word, "=")
			if strings.Contains(value, "{{") {
				value = ""
			}
			node.Labels[name] = value
		}
	}
	for name, value := range machine {
		if syncedLabel(name) {
			node.Labels[name] = value
		}
	}
	if registration.Taints != nil {
		node.Spec.Taints = *registration.Taints
	}
	return node
}

// syncedLabel tells which labels of a Machine Cluster API puts on its Node (cluster-api v1.14, internal/controllers/machine/machine_controller_noderef.go, and the documentation of metadata propagation).
func syncedLabel(name string) bool {
	domain, _, _ := strings.Cut(name, "/")
	for _, synced := range []string{"node-role.kubernetes.io", clusterv1.NodeRestrictionLabelDomain, clusterv1.ManagedNodeLabelDomain} {
		if domain == synced || domain != "node-role.kubernetes.io" && strings.HasSuffix(domain, "."+synced) {
			return true
		}
	}
	return false
}
