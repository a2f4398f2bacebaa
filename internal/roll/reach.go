package roll

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// How the new API server is told from the old one while both answer under the old name, or only the old one does (docs/decisions/0024). The management cluster's ingress
// tells servers apart by the name in the handshake of TLS, and kubeadm puts the machine's name into the certificate of its API server: with an Ingress of that
// name, whoever connects to the old name and asks for the machine's gets the new server, and proof that it is the one. Ports of pods on the new machine are forwarded by
// that server as well: its kubelet answers 401 to the legacy one, which has no certificate for kubelets.

const (
	// ownPort is that of the Service: the Ingress names it, and clients never see it.
	ownPort = int64(443)
	// legacyAPIIngress leads to the legacy API server (legacy-system.md 4.7).
	legacyAPIIngress = "api"
	// passThrough has ingress-nginx leave TLS to the server, and ingressClass is how Ingresses named their class before the field.
	passThrough  = "nginx.ingress.kubernetes.io/ssl-passthrough" //nolint:gosec // G101: "pass" is no password here
	ingressClass = "kubernetes.io/ingress.class"
	// ingressTakes is how long an ingress may take to lead somewhere; a run that waits longer waits for nothing.
	ingressTakes = time.Minute
	// knockTakes is how long somebody may take to show a certificate.
	knockTakes = 10 * time.Second
)

// ErrNoWay means that the new API server cannot be asked apart from the old one.
var ErrNoWay = errors.New("the new API server cannot be asked by its own name")

var errTheirs = errors.New("is somebody else's")

func ingressKind() schema.GroupVersionKind {
	return networkingv1.SchemeGroupVersion.WithKind("Ingress")
}

// ownKinds are what Reach makes, in the order in which it goes.
func ownKinds() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{ingressKind(), coreKind("Service")}
}

// ownName is that of the Service and the Ingress of the new API server. A Service's has to begin with a letter, and clusters' do not all do so.
func (c *Roller) ownName() string { return "migration-" + c.Picture.ID + "-api" }

// Reach gives the new API server a name of its own in the management cluster's ingress: that of its machine. It comes before the machine boots, so that a management
// cluster that refuses the Ingress does so while nothing has joined etcd. Steps: see that the kubeconfig has servers prove who they are; make a Service of
// the machine's pod, and an Ingress like the legacy API's that leads to it. Both belong to the Machine and go with it.
func (c *Roller) Reach(ctx context.Context) error {
	if c.Inside.Insecure {
		return fmt.Errorf("%w: the kubeconfig says insecure-skip-tls-verify, and servers are told apart by their certificates; give one with certificate-authority-data", ErrNoWay)
	}
	machine, err := c.machine(ctx)
	if err != nil {
		return err
	}
	infra, err := c.infrastructure(ctx)
	if err != nil {
		return err
	}
	for _, kind := range ownKinds() {
		if _, err := c.own(ctx, kind); err != nil {
			return err
		}
	}
	for _, o := range []*unstructured.Unstructured{c.ownService(infra.GetName()), c.ownIngress(infra.GetName())} {
		o.SetNamespace(c.Result.Namespace)
		o.SetName(c.ownName())
		o.SetLabels(map[string]string{translate.LabelCluster: c.Picture.ID})
		if err := unstructured.SetNestedSlice(o.Object, []any{map[string]any{
			"apiVersion": machine.GetAPIVersion(), "kind": machine.GetKind(), "name": machine.GetName(), "uid": string(machine.GetUID()),
		}}, "metadata", "ownerReferences"); err != nil {
			return fmt.Errorf("making %s: %w", kube.TargetOf(o), err)
		}
		if err := c.Management.Writer.Ensure(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// ownService selects the VM's pod, ready or not: its API server is compared before the old name leads to it. The Service has an address, because that is what ingress-nginx
// passes connections to (ingress-nginx, internal/ingress/controller/nginx.go).
func (c *Roller) ownService(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"type":     string(corev1.ServiceTypeClusterIP),
		"selector": map[string]any{infrav1.MachineLabel: name}, "publishNotReadyAddresses": true,
		"ports": []any{map[string]any{"name": "api", "protocol": string(corev1.ProtocolTCP), "port": ownPort, "targetPort": int64(c.securePort())}},
	}}}
	o.SetGroupVersionKind(coreKind("Service"))
	return o
}

// ownIngress is like that of the legacy API, by its class and by what keeps TLS closed.
func (c *Roller) ownIngress(name string) *unstructured.Unstructured {
	spec := map[string]any{
		"rules": []any{map[string]any{"host": name, "http": map[string]any{"paths": []any{map[string]any{
			"path": "/", "pathType": string(networkingv1.PathTypePrefix),
			"backend": map[string]any{"service": map[string]any{"name": c.ownName(), "port": map[string]any{"number": ownPort}}},
		}}}}},
		"tls": []any{map[string]any{"hosts": []any{name}}},
	}
	annotations := map[string]string{passThrough: "true"}
	if like := c.apiIngress(); like != nil {
		// API servers refuse to make one that has both.
		if class := like.Spec.IngressClassName; class != nil {
			spec["ingressClassName"] = *class
		} else if class := like.Annotations[ingressClass]; class != "" {
			annotations[ingressClass] = class
		}
	}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(ingressKind())
	o.SetAnnotations(annotations)
	return o
}

// apiIngress is that of the legacy API; nil where there is none.
func (c *Roller) apiIngress() *networkingv1.Ingress {
	for i := range c.Picture.Ingresses {
		if one := &c.Picture.Ingresses[i]; one.Object.Name == legacyAPIIngress && legacy.Says(&one.Object, c.Picture.ID) {
			return &one.Object
		}
	}
	return nil
}

// VerifyReach makes sure that the Ingress names the machine, and that the way into the cluster goes by names: where the legacy API server answers to any of them, both servers could
// not be told apart later. Whether it leads to the new one shows when that one runs: see VerifyServer.
func (c *Roller) VerifyReach(ctx context.Context) error {
	infra, err := c.infrastructure(ctx)
	if err != nil {
		return err
	}
	host, err := c.ownHost(ctx)
	if err != nil {
		return err
	}
	if host != infra.GetName() {
		return fmt.Errorf("%w: Ingress %s/%s names %q and not the machine %s", ErrNoWay, c.Result.Namespace, c.ownName(), host, infra.GetName())
	}
	config := c.byOwnName(host)
	config.Timeout = knockTakes
	clients, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client for %s: %w", host, err)
	}
	// Nobody is there yet, and ingresses have many ways to say so, a certificate of their own among them.
	_, err = clients.ServerVersion()
	if other := (x509.HostnameError{}); errors.As(err, &other) && c.trusted(other.Certificate) {
		return c.elsewhere(err)
	}
	return nil
}

// trusted tells that a certificate is one that clients of the workload cluster take for its API server's, its name aside.
func (c *Roller) trusted(certificate *x509.Certificate) bool {
	config, err := rest.TLSConfigFor(c.Inside)
	if err != nil || config == nil {
		return false
	}
	_, err = certificate.Verify(x509.VerifyOptions{Roots: config.RootCAs})
	return err == nil
}

// own is what Reach has made of a kind; nil when it is not there. What is called like it, and is not of this migration, is an error that errors.Is knows as errTheirs.
func (c *Roller) own(ctx context.Context, kind schema.GroupVersionKind) (*unstructured.Unstructured, error) {
	found, err := c.get(ctx, kind, c.ownName())
	if err == nil && found != nil && found.GetLabels()[translate.LabelCluster] != c.Picture.ID {
		return nil, fmt.Errorf("%w: %s %w; the migration needs the name: remove it and run again, or take the phase back with migrate rollback %s --to adopt", ErrNoWay, kube.TargetOf(found), errTheirs, c.Picture.ID)
	}
	return found, err
}

// left is own for who only takes away: what is somebody else's is no business of a rollback, and must not hold it up.
func (c *Roller) left(ctx context.Context, kind schema.GroupVersionKind) (*unstructured.Unstructured, error) {
	found, err := c.own(ctx, kind)
	if errors.Is(err, errTheirs) {
		return nil, nil //nolint:nilnil // nothing of ours is an ordinary answer
	}
	return found, err
}

// ownHost is the name by which the new API server is asked; empty when it has none of its own.
func (c *Roller) ownHost(ctx context.Context) (string, error) {
	found, err := c.own(ctx, ingressKind())
	if err != nil || found == nil || found.GetDeletionTimestamp() != nil {
		return "", err
	}
	rules, _, err := unstructured.NestedSlice(found.Object, "spec", "rules")
	if err != nil || len(rules) != 1 {
		return "", fmt.Errorf("%w: %s does not have one rule", ErrNoWay, kube.TargetOf(found))
	}
	rule, _ := rules[0].(map[string]any)
	host, _ := rule["host"].(string)
	return host, nil
}

// Unreach takes the new API server's own name away: when it is taken back, and when the old name leads to it alone.
func (c *Roller) Unreach(ctx context.Context) error {
	for _, kind := range ownKinds() {
		found, err := c.left(ctx, kind)
		if err != nil {
			return err
		}
		if found == nil {
			continue
		}
		if err := c.removed(ctx, c.Management, found); err != nil {
			return err
		}
	}
	return nil
}

// VerifyUnreached makes sure that neither is left.
func (c *Roller) VerifyUnreached(ctx context.Context) error {
	for _, kind := range ownKinds() {
		if found, err := c.left(ctx, kind); err != nil {
			return err
		} else if found != nil {
			return fmt.Errorf("%s is still there", kube.TargetOf(found))
		}
	}
	return nil
}

// newServerConfig is the way to the new API server, whoever answers under the old name. It is made anew when somebody has removed it meanwhile: without it the old server would be
// asked.
func (c *Roller) newServerConfig(ctx context.Context) (*rest.Config, error) {
	host, err := c.ownHost(ctx)
	if err == nil && host == "" {
		if err = c.Reach(ctx); err == nil {
			host, err = c.ownHost(ctx)
		}
	}
	if err != nil {
		return nil, err
	}
	if host == "" {
		return nil, fmt.Errorf("%w: Ingress %s/%s is gone", adopt.ErrReplaced, c.Result.Namespace, c.ownName())
	}
	return c.byOwnName(host), nil
}

// byOwnName is Inside with another name in the handshake: the same address, the same credentials, and the same authority.
func (c *Roller) byOwnName(host string) *rest.Config {
	config := rest.CopyConfig(c.Inside)
	config.ServerName = host
	return config
}

// dialPod connects to a port of a pod on a new machine: through the new API server while it has a name of its own, and through whoever answers when it has not, which is before it
// joins, and when no legacy one is left. It says why the kubelet may refuse.
func (c *Roller) dialPod(ctx context.Context, pod string, port int) (net.Conn, error) {
	config := c.Inside
	host, err := c.ownHost(ctx)
	if err != nil {
		return nil, err
	}
	if host != "" {
		config = c.byOwnName(host)
	}
	conn, err := c.PodDialer(config)(ctx, systemNamespace, pod, port)
	if err != nil && host == "" && strings.HasSuffix(err.Error(), "Unauthorized") {
		return nil, fmt.Errorf("%w: the kubelet asks for a certificate, and an API server without --kubelet-client-certificate, as the legacy one, has none; Ingress %s/%s, which leads to the new one, is not there",
			err, c.Result.Namespace, c.ownName())
	}
	return conn, err
}

// misled tells that somebody else answered to the new server's name, or that an ingress does not know it. One that has nobody for it is only waited for (kube.Transient).
func misled(err error) bool {
	var (
		name      x509.HostnameError
		authority x509.UnknownAuthorityError
	)
	return errors.As(err, &name) || errors.As(err, &authority) || kube.Alert(err) == "tls: unrecognized name"
}

// elsewhere explains what misled found.
func (c *Roller) elsewhere(err error) error {
	return fmt.Errorf("%w: whoever answers at %s is not it; the way into the workload cluster has to lead through the management cluster's ingress, which Ingress %s/%s is for, with TLS passed through and the "+
		"server's name in it; name such a way with --workload-kubeconfig and run again, or take the phase back with migrate rollback %s --to adopt: %w", ErrNoWay, c.Inside.Host, c.Result.Namespace, c.ownName(), c.Picture.ID, err)
}
