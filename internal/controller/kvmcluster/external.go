package kvmcluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
)

// ensureExternal keeps the listed Endpoints current. Each is independent of the others.
func (r *Reconciler) ensureExternal(ctx context.Context, s *scope) error {
	errs := make([]error, 0, len(s.infra.Spec.Endpoints))
	for i := range s.infra.Spec.Endpoints {
		errs = append(errs, r.ensureEndpoints(ctx, s, &s.infra.Spec.Endpoints[i]))
	}
	return failure.Join(errs...)
}

// ensureEndpoints keeps one Endpoints object current. It belongs to somebody else's Service and is changed by a small patch that fails when
// somebody else was faster. Without a Service there is nothing to serve, with a selector Kubernetes itself writes it.
func (r *Reconciler) ensureEndpoints(ctx context.Context, s *scope, ref *infrav1.EndpointsReference) error {
	if !slices.ContainsFunc(s.machines, func(m machine) bool { return m.role == ref.Role }) {
		return r.leaveEndpoints(ctx, ref)
	}
	key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	service := &corev1.Service{}
	if err := r.APIReader.Get(ctx, key, service); err != nil {
		if apierrors.IsNotFound(err) {
			return &UnusableError{ref.Namespace, ref.Name, "there is no Service of this name"}
		}
		return fmt.Errorf("reading Service %s: %w", key, err)
	}
	if len(service.Spec.Selector) > 0 {
		return &UnusableError{ref.Namespace, ref.Name, "the Service has a selector, so Kubernetes maintains its Endpoints"}
	}
	subsets := subsetsOf(s, ref)
	existing := &corev1.Endpoints{} //nolint:staticcheck // Deprecated, and what the objects in question are.
	if err := r.APIReader.Get(ctx, key, existing); err != nil {
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading Endpoints %s: %w", key, err)
		}
		//nolint:staticcheck // As above.
		made := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Subsets: subsets}
		if err := r.Client.Create(ctx, made, client.FieldOwner(FieldOwner)); err != nil {
			return fmt.Errorf("creating Endpoints %s: %w", key, err)
		}
		return nil
	}
	before := existing.DeepCopy()
	if equality.Semantic.DeepEqual(normalized(existing.Subsets), normalized(subsets)) {
		return nil
	}
	existing.Subsets = subsets
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, existing, patch, client.FieldOwner(FieldOwner)); err != nil {
		return fmt.Errorf("patching Endpoints %s: %w", key, err)
	}
	return nil
}

// leaveEndpoints is for a role without machines. Where addresses are listed nobody described theirs yet, and taking them away would take running machines off the network. Where none are, as
// in a cluster without workers, they are current, and so they are where nobody is sent: the last machine of a role that is replaced after it has gone leaves its address behind as one that is not ready.
func (r *Reconciler) leaveEndpoints(ctx context.Context, ref *infrav1.EndpointsReference) error {
	key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	existing := &corev1.Endpoints{} //nolint:staticcheck // Deprecated, and what the objects in question are.
	if err := r.APIReader.Get(ctx, key, existing); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading Endpoints %s: %w", key, err)
	}
	//nolint:staticcheck // As above.
	if slices.ContainsFunc(existing.Subsets, func(s corev1.EndpointSubset) bool { return len(s.Addresses) > 0 }) {
		return &UnusableError{ref.Namespace, ref.Name, fmt.Sprintf("the cluster has no KVMMachine with role %s; the addresses stay as they are", ref.Role)}
	}
	return nil
}

// subsetsOf are the addresses of a role, in one subset; those of new machines are in one of their own when some ports are not for them. An adopted machine
// that is kept from traffic keeps those ports that nobody else serves.
//
//nolint:staticcheck // As above.
func subsetsOf(s *scope, ref *infrav1.EndpointsReference) []corev1.EndpointSubset {
	adopted, fresh, kept := portsFor(ref)
	for _, m := range s.machines {
		if m.excluded && m.adopted && m.role == ref.Role && m.ready && m.address.IsValid() {
			kept.Addresses = append(kept.Addresses, corev1.EndpointAddress{IP: m.address.String()})
		}
	}
	for _, t := range targets(s.machines, ref.Role) {
		subset, address := &adopted, corev1.EndpointAddress{IP: t.address.String()}
		if !t.adopted && len(fresh.Ports) < len(adopted.Ports) {
			subset = &fresh
		}
		if t.serves {
			subset.Addresses = append(subset.Addresses, address)
		} else {
			subset.NotReadyAddresses = append(subset.NotReadyAddresses, address)
		}
	}
	var out []corev1.EndpointSubset
	for _, subset := range []corev1.EndpointSubset{adopted, fresh, kept} {
		if len(subset.Addresses)+len(subset.NotReadyAddresses) == 0 || len(subset.Ports) == 0 {
			continue
		}
		slices.SortFunc(subset.Addresses, byIP)
		slices.SortFunc(subset.NotReadyAddresses, byIP)
		out = append(out, subset)
	}
	return out
}

// portsFor makes a subset for each of those: adopted machines, which have all ports; new ones; and adopted ones that are kept from traffic.
//
//nolint:staticcheck // As above.
func portsFor(ref *infrav1.EndpointsReference) (adopted, fresh, kept corev1.EndpointSubset) {
	for _, p := range ref.Ports {
		port := corev1.EndpointPort{Name: p.Name, Port: p.Port, Protocol: corev1.ProtocolTCP}
		adopted.Ports = append(adopted.Ports, port)
		if p.AdoptedOnly {
			kept.Ports = append(kept.Ports, port)
		} else {
			fresh.Ports = append(fresh.Ports, port)
		}
	}
	return adopted, fresh, kept
}

// normalized brings subsets into one order, to compare them: whoever wrote them before had another. What is written has the order of the
// reference, which is the Service's, so that an address that came and went leaves the object as it was.
//
//nolint:staticcheck // As above.
func normalized(original []corev1.EndpointSubset) []corev1.EndpointSubset {
	subsets := make([]corev1.EndpointSubset, len(original))
	for i := range original {
		subsets[i] = *original[i].DeepCopy()
		slices.SortFunc(subsets[i].Addresses, byIP)
		slices.SortFunc(subsets[i].NotReadyAddresses, byIP)
		slices.SortFunc(subsets[i].Ports, func(a, b corev1.EndpointPort) int { return strings.Compare(a.Name, b.Name) })
	}
	return subsets
}

func byIP(a, b corev1.EndpointAddress) int { return strings.Compare(a.IP, b.IP) }
