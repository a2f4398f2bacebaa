package ingress

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Why there is no backend for a name.
var (
	ErrNoIngress   = errors.New("no Ingress has this host")
	ErrNoEndpoints = errors.New("no endpoint is ready")
)

// legacyClass is how Ingresses named their class before the field.
const legacyClass = "kubernetes.io/ingress.class"

const (
	byHost    = "host"
	byService = "service"
)

// Backend is where a connection may go.
type Backend struct {
	Service types.NamespacedName
	Address string
}

// Routes finds backends in the caches of informers.
type Routes struct {
	class     string
	ingresses cache.SharedIndexInformer
	slices    cache.SharedIndexInformer
	services  corelisters.ServiceLister
	synced    []cache.InformerSynced
}

// NewRoutes makes informers for what routes depend on. The caller starts the
// factory.
func NewRoutes(factory informers.SharedInformerFactory, class string) (*Routes, error) {
	services := factory.Core().V1().Services()
	r := &Routes{
		class:     class,
		ingresses: factory.Networking().V1().Ingresses().Informer(),
		slices:    factory.Discovery().V1().EndpointSlices().Informer(),
		services:  services.Lister(),
	}
	r.synced = []cache.InformerSynced{r.ingresses.HasSynced, r.slices.HasSynced, services.Informer().HasSynced}
	if err := r.ingresses.AddIndexers(cache.Indexers{byHost: r.hosts}); err != nil {
		return nil, fmt.Errorf("indexing Ingresses: %w", err)
	}
	if err := r.slices.AddIndexers(cache.Indexers{byService: serviceOfSlice}); err != nil {
		return nil, fmt.Errorf("indexing EndpointSlices: %w", err)
	}
	return r, nil
}

// Synced says whether the caches are filled.
func (r *Routes) Synced() bool {
	return !slices.ContainsFunc(r.synced, func(synced cache.InformerSynced) bool { return !synced() })
}

// Ours says whether an Ingress is of the class served here.
func (r *Routes) Ours(ingress *networkingv1.Ingress) bool {
	if name := ingress.Spec.IngressClassName; name != nil {
		return *name == r.class
	}
	return ingress.Annotations[legacyClass] == r.class
}

func (r *Routes) hosts(obj any) ([]string, error) {
	ingress, ok := obj.(*networkingv1.Ingress)
	if !ok || !r.Ours(ingress) {
		return nil, nil
	}
	var hosts []string
	for _, rule := range ingress.Spec.Rules {
		hosts = append(hosts, strings.ToLower(rule.Host))
	}
	return hosts, nil
}

func serviceOfSlice(obj any) ([]string, error) {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil, nil
	}
	return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}, nil
}

// Backends returns the ready endpoints for a host name, those of a wildcard if
// nobody names it exactly. If none is ready, endpoints that still serve while
// they terminate have to do.
func (r *Routes) Backends(host string) ([]Backend, error) {
	service, port, err := r.service(host)
	if err != nil {
		return nil, err
	}
	name, err := r.portName(service, port)
	if err != nil {
		return nil, err
	}
	found, err := r.endpoints(service, name, func(c discoveryv1.EndpointConditions) bool { return c.Ready == nil || *c.Ready })
	if err == nil && len(found) == 0 {
		found, err = r.endpoints(service, name, func(c discoveryv1.EndpointConditions) bool {
			return c.Serving != nil && *c.Serving && c.Terminating != nil && *c.Terminating
		})
	}
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("routing %s to Service %s: %w", host, service, ErrNoEndpoints)
	}
	return found, nil
}

// service finds the backend of a host. When several Ingresses claim it, the
// oldest has it.
func (r *Routes) service(host string) (types.NamespacedName, networkingv1.ServiceBackendPort, error) {
	candidates := []string{host}
	if _, parent, ok := strings.Cut(host, "."); ok {
		candidates = append(candidates, "*."+parent)
	}
	for _, candidate := range candidates {
		objects, err := r.ingresses.GetIndexer().ByIndex(byHost, candidate)
		if err != nil {
			return types.NamespacedName{}, networkingv1.ServiceBackendPort{}, fmt.Errorf("looking for Ingresses of %s: %w", host, err)
		}
		ingresses := make([]*networkingv1.Ingress, 0, len(objects))
		for _, o := range objects {
			if ingress, ok := o.(*networkingv1.Ingress); ok {
				ingresses = append(ingresses, ingress)
			}
		}
		slices.SortFunc(ingresses, func(a, b *networkingv1.Ingress) int {
			return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
		})
		for _, ingress := range ingresses {
			if backend := backendOf(ingress, candidate); backend != nil {
				return types.NamespacedName{Namespace: ingress.Namespace, Name: backend.Name}, backend.Port, nil
			}
		}
	}
	return types.NamespacedName{}, networkingv1.ServiceBackendPort{}, fmt.Errorf("routing %q: %w", host, ErrNoIngress)
}

// backendOf is the Service of a host's first path: paths are encrypted, so the
// others can never match.
func backendOf(ingress *networkingv1.Ingress, host string) *networkingv1.IngressServiceBackend {
	for _, rule := range ingress.Spec.Rules {
		if !strings.EqualFold(rule.Host, host) {
			continue
		}
		if rule.HTTP != nil && len(rule.HTTP.Paths) > 0 {
			return rule.HTTP.Paths[0].Backend.Service
		}
		if ingress.Spec.DefaultBackend != nil {
			return ingress.Spec.DefaultBackend.Service
		}
	}
	return nil
}

// portName translates a Service's port to the name it has in EndpointSlices.
func (r *Routes) portName(name types.NamespacedName, port networkingv1.ServiceBackendPort) (string, error) {
	service, err := r.services.Services(name.Namespace).Get(name.Name)
	if err != nil {
		return "", fmt.Errorf("looking for Service %s: %w", name, err)
	}
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return port.Name != "" && p.Name == port.Name || port.Name == "" && p.Port == port.Number
	})
	if i < 0 {
		return "", fmt.Errorf("looking for port %s%d of Service %s: it has none like that", port.Name, port.Number, name)
	}
	return service.Spec.Ports[i].Name, nil
}

func (r *Routes) endpoints(service types.NamespacedName, port string, want func(discoveryv1.EndpointConditions) bool) ([]Backend, error) {
	objects, err := r.slices.GetIndexer().ByIndex(byService, service.String())
	if err != nil {
		return nil, fmt.Errorf("looking for endpoints of Service %s: %w", service, err)
	}
	var found []Backend
	for _, o := range objects {
		slice, ok := o.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		for _, p := range slice.Ports {
			if p.Port == nil || p.Name != nil && *p.Name != port || p.Name == nil && port != "" {
				continue
			}
			for _, e := range slice.Endpoints {
				if !want(e.Conditions) {
					continue
				}
				for _, a := range e.Addresses {
					found = append(found, Backend{service, net.JoinHostPort(a, strconv.Itoa(int(*p.Port)))})
				}
			}
		}
	}
	return found, nil
}

// Exists says whether a backend is still listed, in whatever condition.
func (r *Routes) Exists(b Backend) bool {
	objects, err := r.slices.GetIndexer().ByIndex(byService, b.Service.String())
	if err != nil {
		return true // Nobody's connection is cut for a doubt.
	}
	host, _, err := net.SplitHostPort(b.Address)
	if err != nil {
		return true
	}
	for _, o := range objects {
		if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
			for _, e := range slice.Endpoints {
				if slices.Contains(e.Addresses, host) {
					return true
				}
			}
		}
	}
	return false
}

// OnEndpoints calls a function after endpoints changed.
func (r *Routes) OnEndpoints(do func()) error {
	_, err := r.slices.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, _ any) { do() },
		DeleteFunc: func(any) { do() },
	})
	if err != nil {
		return fmt.Errorf("watching EndpointSlices: %w", err)
	}
	return nil
}
