package kvmcluster

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
)

const (
	managedByLabel = "app.kubernetes.io/managed-by"

	portAPI = "api"

	// mostEndpoints is how many endpoints the API server takes in one EndpointSlice.
	mostEndpoints = 1000
)

// ensureObjects applies what is wanted and deletes what is not wanted any more.
func (r *Reconciler) ensureObjects(ctx context.Context, s *scope) error {
	wanted := desired(s)
	errs := make([]error, 0, len(wanted))
	for _, object := range wanted {
		errs = append(errs, r.apply(ctx, s.infra, object))
	}
	errs = append(errs, r.prune(ctx, s, wanted))
	return failure.Join(errs...)
}

// desired are the objects that the KVMCluster owns.
func desired(s *scope) []client.Object {
	api, workers := serviceNames(s)
	objects := []client.Object{service(s, api, corev1.ServiceTypeClusterIP, []corev1.ServicePort{{
		Name: portAPI, Protocol: corev1.ProtocolTCP, Port: s.infra.Spec.ControlPlaneEndpoint.Port, TargetPort: intstr.FromInt32(apiPort(s.cluster)),
	}})}
	objects = append(objects, slicesOf(s, api, infrav1.ControlPlaneMachines, []discoveryv1.EndpointPort{slicePort(portAPI, apiPort(s.cluster))})...)
	if s.infra.Spec.Ingress != nil {
		objects = append(objects, ingress(s, api))
	}
	if published := s.infra.Spec.WorkerPorts; len(published) > 0 {
		servicePorts := make([]corev1.ServicePort, 0, len(published))
		ports := make([]discoveryv1.EndpointPort, 0, len(published))
		for _, p := range published {
			servicePorts = append(servicePorts, corev1.ServicePort{
				Name: p.Name, Protocol: corev1.ProtocolTCP, Port: p.Port, TargetPort: intstr.FromInt32(p.Port), NodePort: p.NodePort,
			})
			ports = append(ports, slicePort(p.Name, p.Port))
		}
		objects = append(objects, service(s, workers, corev1.ServiceTypeNodePort, servicePorts))
		objects = append(objects, slicesOf(s, workers, infrav1.WorkerMachines, ports)...)
	}
	return objects
}

// serviceNames are what the Services of a cluster are called. Those of a cluster that begins with a digit had the plain names once, on API servers that take them. Where the endpoint names one
// of them, it cannot be called otherwise any more: every kubeconfig and certificate carries the endpoint.
func serviceNames(s *scope) (api, workers string) {
	plain := s.cluster.Name + "-control-plane"
	if strings.HasPrefix(s.infra.Spec.ControlPlaneEndpoint.Host+".", plain+"."+s.infra.Namespace+".svc.") {
		return plain, s.cluster.Name + "-workers"
	}
	return infrav1.APIServiceName(s.cluster.Name), infrav1.WorkersServiceName(s.cluster.Name)
}

// apiPort is where the API servers of the machines listen; kubeadm takes it from the Cluster, too.
func apiPort(cluster *clusterv1.Cluster) int32 {
	if port := cluster.Spec.ClusterNetwork.APIServerPort; port != 0 {
		return port
	}
	return defaultAPIPort
}

func meta(s *scope, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: s.infra.Namespace,
		Labels: map[string]string{clusterv1.ClusterNameLabel: s.cluster.Name, managedByLabel: FieldOwner},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: infrav1.GroupVersion().String(), Kind: "KVMCluster", Name: s.infra.Name, UID: s.infra.UID,
			Controller: new(true),
		}},
	}
}

// service has no selector: readiness of a control plane is more than a label can say. It is of the family that guests have, whichever comes first in the
// management cluster: with another one, none of them would be reached.
func service(s *scope, name string, kind corev1.ServiceType, ports []corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: meta(s, name),
		Spec: corev1.ServiceSpec{
			Type: kind, Ports: ports,
			IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		},
	}
}

func slicePort(name string, port int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: new(name), Protocol: new(corev1.ProtocolTCP), Port: new(port)}
}

// slicesOf lists the machines of a role. There is always a slice for IPv4, so that the Service is seen to be looked after.
func slicesOf(s *scope, name string, role infrav1.MachineRole, ports []discoveryv1.EndpointPort) []client.Object {
	byFamily := map[discoveryv1.AddressType][]discoveryv1.Endpoint{}
	for _, t := range targets(s.machines, role) {
		family := discoveryv1.AddressTypeIPv4
		if t.address.Is6() {
			family = discoveryv1.AddressTypeIPv6
		}
		byFamily[family] = append(byFamily[family], endpointOf(t))
	}
	var objects []client.Object
	for _, family := range []struct {
		kind   discoveryv1.AddressType
		suffix string
	}{{discoveryv1.AddressTypeIPv4, "-ipv4"}, {discoveryv1.AddressTypeIPv6, "-ipv6"}} {
		all := byFamily[family.kind]
		for i := 0; i == 0 && family.kind == discoveryv1.AddressTypeIPv4 || i*mostEndpoints < len(all); i++ {
			sliceName := name + family.suffix
			if i > 0 {
				sliceName += "-" + strconv.Itoa(i+1)
			}
			objects = append(objects, slice(s, name, sliceName, family.kind, ports, all[min(i*mostEndpoints, len(all)):min((i+1)*mostEndpoints, len(all))]))
		}
	}
	return objects
}

func slice(
	s *scope, service, name string, kind discoveryv1.AddressType, ports []discoveryv1.EndpointPort, endpoints []discoveryv1.Endpoint,
) *discoveryv1.EndpointSlice {
	object := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  meta(s, name),
		AddressType: kind,
		Ports:       ports,
		// The field is required, also when nobody serves.
		Endpoints: slices.Concat([]discoveryv1.Endpoint{}, endpoints),
	}
	object.Labels[discoveryv1.LabelServiceName] = service
	object.Labels[discoveryv1.LabelManagedBy] = FieldOwner
	return object
}

func endpointOf(t target) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses: []string{t.address.String()},
		Conditions: discoveryv1.EndpointConditions{
			Ready: new(t.serves), Serving: new(t.serves || t.up), Terminating: new(t.pod.DeletionTimestamp != nil),
		},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: t.pod.Namespace, Name: t.pod.Name, UID: t.pod.UID},
	}
	if t.pod.Spec.NodeName != "" {
		e.NodeName = new(t.pod.Spec.NodeName)
	}
	return e
}

// ingress publishes the API under its names. The API server ends TLS itself, so the Ingress names no certificate.
func ingress(s *scope, service string) *networkingv1.Ingress {
	spec := s.infra.Spec.Ingress
	object := &networkingv1.Ingress{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "Ingress"},
		ObjectMeta: meta(s, service),
	}
	object.Annotations = spec.Annotations
	if spec.ClassName != "" {
		object.Spec.IngressClassName = new(spec.ClassName)
	}
	for _, host := range ingressHosts(s.infra) {
		object.Spec.Rules = append(object.Spec.Rules, networkingv1.IngressRule{
			Host: host,
			IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
				Path: "/", PathType: new(networkingv1.PathTypePrefix),
				Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
					Name: service, Port: networkingv1.ServiceBackendPort{Name: portAPI},
				}},
			}}}},
		})
	}
	object.Spec.TLS = []networkingv1.IngressTLS{{Hosts: ingressHosts(s.infra)}}
	return object
}

// ingressHosts are the names to publish. An address is no name: an Ingress cannot tell clusters apart by it.
func ingressHosts(infra *infrav1.KVMCluster) []string {
	if hosts := infra.Spec.Ingress.Hosts; len(hosts) > 0 {
		return hosts
	}
	if _, err := netip.ParseAddr(infra.Spec.ControlPlaneEndpoint.Host); err == nil {
		return nil
	}
	return []string{infra.Spec.ControlPlaneEndpoint.Host}
}

// owned lists the cached objects that belong to the KVMCluster.
func (r *Reconciler) owned(ctx context.Context, s *scope) ([]client.Object, error) {
	var objects []client.Object
	for _, list := range []client.ObjectList{&corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}, &networkingv1.IngressList{}} {
		err := r.Client.List(ctx, list, client.InNamespace(s.infra.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: clusterName(s)})
		if err != nil {
			return nil, fmt.Errorf("listing what belongs to KVMCluster %s: %w", s.infra.Name, err)
		}
		objects = append(objects, items(list)...)
	}
	return slices.DeleteFunc(objects, func(o client.Object) bool { return !metav1.IsControlledBy(o, s.infra) }), nil
}

func items(list client.ObjectList) []client.Object {
	var objects []client.Object
	switch l := list.(type) {
	case *corev1.ServiceList:
		for i := range l.Items {
			objects = append(objects, &l.Items[i])
		}
	case *discoveryv1.EndpointSliceList:
		for i := range l.Items {
			objects = append(objects, &l.Items[i])
		}
	case *networkingv1.IngressList:
		for i := range l.Items {
			objects = append(objects, &l.Items[i])
		}
	}
	return objects
}

// prune deletes owned objects that are not wanted any more.
func (r *Reconciler) prune(ctx context.Context, s *scope, wanted []client.Object) error {
	existing, err := r.owned(ctx, s)
	if err != nil {
		return err
	}
	var errs []error
	for _, object := range existing {
		keep := slices.ContainsFunc(wanted, func(w client.Object) bool { return sameKind(w, object) && w.GetName() == object.GetName() })
		if !keep {
			errs = append(errs, r.delete(ctx, object))
		}
	}
	return failure.Join(errs...)
}

// removeObjects deletes everything that is owned and names what is left.
func (r *Reconciler) removeObjects(ctx context.Context, s *scope) ([]string, error) {
	existing, err := r.owned(ctx, s)
	if err != nil {
		return nil, err
	}
	var left []string
	for _, object := range existing {
		if err := r.delete(ctx, object); err != nil {
			return nil, err
		}
		left = append(left, kindOf(object)+" "+object.GetName())
	}
	return left, nil
}

func (r *Reconciler) delete(ctx context.Context, object client.Object) error {
	if !object.GetDeletionTimestamp().IsZero() {
		return nil
	}
	// By UID: an object of the same name that somebody made in the meantime is not ours to delete.
	err := r.Client.Delete(ctx, object, client.Preconditions{UID: new(object.GetUID())})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting %s %s: %w", kindOf(object), object.GetName(), err)
	}
	return nil
}

func sameKind(a, b client.Object) bool { return kindOf(a) == kindOf(b) }

// kindOf names a kind for people; objects from lists do not carry theirs.
func kindOf(object client.Object) string {
	switch object.(type) {
	case *corev1.Service:
		return "Service"
	case *discoveryv1.EndpointSlice:
		return "EndpointSlice"
	case *networkingv1.Ingress:
		return "Ingress"
	default:
		return object.GetObjectKind().GroupVersionKind().Kind
	}
}
