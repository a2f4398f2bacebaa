package webhooks

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

// Cluster validates KVMClusters.
type Cluster struct{}

var _ admission.Validator[*infrav1.KVMCluster] = &Cluster{}

// ValidateCreate checks the name and the spec.
func (*Cluster) ValidateCreate(_ context.Context, c *infrav1.KVMCluster) (admission.Warnings, error) {
	problems := clusterName(c)
	problems = append(problems, clusterSpec(field.NewPath("spec"), &c.Spec)...)
	return nil, refused("KVMCluster", c.Name, problems)
}

// ValidateUpdate checks a changed spec. What was accepted once is not judged again, and while an object is being deleted nothing is
// refused: a stricter release of this program must not keep finalizers on objects.
func (*Cluster) ValidateUpdate(_ context.Context, before, after *infrav1.KVMCluster) (admission.Warnings, error) {
	if !after.DeletionTimestamp.IsZero() || equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	problems := endpointChange(field.NewPath("spec", "controlPlaneEndpoint"), before.Spec.ControlPlaneEndpoint, after.Spec.ControlPlaneEndpoint)
	problems = append(problems, clusterSpec(field.NewPath("spec"), &after.Spec)...)
	return nil, refused("KVMCluster", after.Name, problems)
}

// ValidateDelete lets every deletion pass.
func (*Cluster) ValidateDelete(context.Context, *infrav1.KVMCluster) (admission.Warnings, error) {
	return nil, nil
}

// nameOf is the name of the cluster, and where it says so.
func nameOf(c *infrav1.KVMCluster) (*field.Path, string) {
	if label := c.Labels[clusterv1.ClusterNameLabel]; label != "" {
		return field.NewPath("metadata", "labels").Key(clusterv1.ClusterNameLabel), label
	}
	for i, owner := range c.OwnerReferences {
		if owner.Kind == clusterv1.ClusterKind {
			return field.NewPath("metadata", "ownerReferences").Index(i).Child("name"), owner.Name
		}
	}
	return field.NewPath("metadata", "name"), c.Name
}

// clusterName checks that the Services can be called after the cluster.
func clusterName(c *infrav1.KVMCluster) field.ErrorList {
	at, name := nameOf(c)
	if name == "" || len(validation.IsDNS1035Label(infrav1.APIServiceName(name))) == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(at, name,
		"the Service "+infrav1.APIServiceName(name)+" is called after it: at most 49 lower-case letters, digits and '-', 45 if it begins with a digit")}
}

// endpointChange allows to set what was empty. Certificates and kubeconfigs of all machines carry the rest.
func endpointChange(at *field.Path, before, after clusterv1.APIEndpoint) field.ErrorList {
	var problems field.ErrorList
	const why = "cannot change, it is %s: every certificate and kubeconfig of the cluster carries it"
	if before.Host != "" && before.Host != after.Host {
		problems = append(problems, field.Invalid(at.Child("host"), after.Host, fmt.Sprintf(why, before.Host)))
	}
	if before.Port != 0 && before.Port != after.Port {
		problems = append(problems, field.Invalid(at.Child("port"), after.Port, fmt.Sprintf(why, strconv.Itoa(int(before.Port)))))
	}
	return problems
}

// clusterSpec checks what a cluster and a template have in common.
func clusterSpec(at *field.Path, s *infrav1.KVMClusterSpec) field.ErrorList {
	var problems field.ErrorList
	if s.ControlPlaneEndpoint.Host != "" {
		problems = append(problems, host(at.Child("controlPlaneEndpoint", "host"), s.ControlPlaneEndpoint.Host)...)
	}
	problems = append(problems, ingress(at.Child("ingress"), s.Ingress, s.ControlPlaneEndpoint.Host)...)
	if s.FailureDomainLabel != "" {
		problems = append(problems, labelKey(at.Child("failureDomainLabel"), s.FailureDomainLabel)...)
	}
	problems = append(problems, workerPorts(at.Child("workerPorts"), s.WorkerPorts)...)
	return append(problems, endpoints(at.Child("endpoints"), s.Endpoints)...)
}

func ingress(at *field.Path, i *infrav1.Ingress, endpoint string) field.ErrorList {
	if i == nil {
		return nil
	}
	problems := each(at.Child("hosts"), i.Hosts, dnsName)
	if _, err := netip.ParseAddr(endpoint); err == nil && len(i.Hosts) == 0 {
		problems = append(problems, field.Required(at.Child("hosts"),
			"an Ingress tells clusters apart by name, and spec.controlPlaneEndpoint.host is the address "+endpoint))
	}
	if i.ClassName != "" {
		problems = append(problems, dnsName(at.Child("className"), i.ClassName)...)
	}
	return append(problems, apivalidation.ValidateAnnotations(i.Annotations, at.Child("annotations"))...)
}

func workerPorts(at *field.Path, ports []infrav1.WorkerPort) field.ErrorList {
	var problems field.ErrorList
	numbers, nodePorts := map[int32]bool{}, map[int32]bool{}
	for i, p := range ports {
		here := at.Index(i)
		problems = append(problems, portName(here.Child("name"), p.Name)...)
		if numbers[p.Port] {
			problems = append(problems, field.Duplicate(here.Child("port"), p.Port))
		}
		if p.NodePort != 0 && nodePorts[p.NodePort] {
			problems = append(problems, field.Duplicate(here.Child("nodePort"), p.NodePort))
		}
		numbers[p.Port], nodePorts[p.NodePort] = true, true
	}
	return problems
}

func portName(at *field.Path, name string) field.ErrorList {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return field.ErrorList{field.Invalid(at, name, "is no name of a port: lower-case letters, digits and '-', for example https")}
	}
	return nil
}

func endpoints(at *field.Path, refs []infrav1.EndpointsReference) field.ErrorList {
	var problems field.ErrorList
	seen := map[string]bool{}
	for i, ref := range refs {
		here := at.Index(i)
		for _, part := range []struct{ name, value string }{{"namespace", ref.Namespace}, {"name", ref.Name}} {
			if len(validation.IsDNS1123Label(part.value)) > 0 {
				problems = append(problems, field.Invalid(here.Child(part.name), part.value, "is no name: lower-case letters, digits and '-'"))
			}
		}
		key := ref.Namespace + "/" + ref.Name
		if seen[key] {
			problems = append(problems, field.Duplicate(here, key))
		}
		seen[key] = true
		for j, port := range ref.Ports {
			problems = append(problems, portName(here.Child("ports").Index(j).Child("name"), port.Name)...)
		}
	}
	return problems
}
