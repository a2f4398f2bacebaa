package roll

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

const (
	systemNamespace = metav1.NamespaceSystem
	// Static pods of a machine are called by their component and its Node (kubeadm).
	apiServerPod = "kube-apiserver-"
	etcdPod      = "etcd-"
	clientPort   = 2379
)

// newNode is the Node of the new machine; nil when it has not registered. It is found by the provider ID, which its kubelet knows from the start.
func (c *Roller) newNode(ctx context.Context) (*unstructured.Unstructured, error) {
	machine, err := c.infrastructure(ctx)
	if err != nil {
		return nil, err
	}
	id := text(machine, "spec", "providerID")
	nodes, err := adopt.List(ctx, c.Workload.Client, coreKind("Node"), "")
	if err != nil || id == "" {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if text(nodes[name], "spec", "providerID") == id {
			return nodes[name], nil
		}
	}
	return nil, nil //nolint:nilnil // a Node that has not registered is an ordinary answer
}

// newEtcd asks the new machine's etcd, through its pod.
func (c *Roller) newEtcd(ctx context.Context) (*etcd.Client, error) {
	node, err := c.newNode(ctx)
	if err != nil {
		return nil, err
	}
	if node == nil {
		return nil, fmt.Errorf("%w: the new machine has no Node, so its etcd cannot be reached", ErrUnwell)
	}
	return c.etcdOn(node.GetName())
}

// ThroughAPod limits a question to an etcd that only its pod leads to: API server, kubelet and containerd take part before a handshake starts. On a machine that had too little
// processor 33 seconds went by before the way was there and 8 more for the handshake, so that no question of ten seconds was ever answered.
const ThroughAPod = time.Minute

// etcdOn asks the etcd of a Node, through its pod.
func (c *Roller) etcdOn(node string) (*etcd.Client, error) {
	return etcd.New(etcd.Options{
		Endpoints: []etcd.Endpoint{{URL: ownEndpoint()}}, TLS: c.Credentials, Timeout: ThroughAPod,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.dialPod(ctx, etcdPod+node, clientPort)
		},
	})
}

// ownEndpoint is that of a member as its own machine calls it.
func ownEndpoint() string { return "https://localhost:" + strconv.Itoa(clientPort) }

// AwaitServer waits until the new machine has a Node, its API server a pod that is ready, and the Node its way to Services: an API server without it serves, but calls
// no webhook and no aggregated API, so that what a webhook must see fails as soon as it is asked. It stops early when its bootstrap failed.
func (c *Roller) AwaitServer(ctx context.Context) error {
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		if _, err := c.stillBoots(ctx); err != nil {
			return "", err
		}
		node, err := c.newNode(ctx)
		if err != nil || node == nil {
			return "the new machine's Node", err
		}
		pod, err := get(ctx, c.Workload.Client, coreKind("Pod"), systemNamespace, apiServerPod+node.GetName())
		if err != nil || pod == nil {
			return "pod " + apiServerPod + node.GetName(), err
		}
		if status, _ := adopt.Condition(pod, string(corev1.PodReady)); status != "True" {
			return "pod " + apiServerPod + node.GetName() + " to be ready", nil
		}
		// Its kubelet says so when the network is set up: by then the DaemonSets have seen the Node as well, so that what they count includes it.
		if status, message := adopt.Condition(node, string(corev1.NodeReady)); status != "True" {
			return strings.TrimSuffix(fmt.Sprintf("Node %s to be ready: %s", node.GetName(), message), ": "), nil
		}
		return c.missingDaemon(ctx, []string{node.GetName()}, func(set *appsv1.DaemonSet, _ int) bool { return carriesServices(set) })
	})
}

// servers are the two API servers that are compared.
type servers struct {
	before, after *server
	note          func(format string, args ...any)
	// patiently does what may fail for want of an answer until it gets one: what was compared before stays compared.
	patiently func(ctx context.Context, do func(ctx context.Context) error) error
}

// server is one of them.
type server struct {
	clients    kubernetes.Interface
	extensions apiextensions.Interface
	metadata   metadata.Interface
	resources  map[schema.GroupResource]resource
	// away are the aggregated APIs that did not answer.
	away map[string]bool
	// callee is how long a webhook may take to answer; zero is longestCallee.
	callee time.Duration
}

// onlyAway are the aggregated APIs that answer through the old server, and not through the new one.
func (s *servers) onlyAway() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.after.away)), func(group string) bool { return s.before.away[group] })
}

// resource is what a server can list.
type resource struct {
	schema.GroupVersionResource

	namespaced bool
}

// VerifyServer compares the new API server with the old one before the old name leads to it: both look at the same etcd, so everything has to be the same. Pods that ask by the API's Service
// reach it already: a server lists itself in the Endpoints default/kubernetes once it is ready (kubernetes pkg/controlplane/controller/kubernetesservice).
//
//  1. it answers to its own name with a certificate of the cluster's authority,
//  2. that certificate is good for the names by which the old one is asked,
//  3. it has the settings by which the old one knows people and keeps records,
//  4. aggregated APIs answer through it as well, and it reaches the webhooks that the old one reaches: its way to Services was waited for before,
//  5. every resource that both serve has the same objects, by UID and resource version,
//  6. the values of Secrets are the same, so it has the key they are encrypted with,
//  7. each accepts service account tokens that the other issued, and those in old Secrets.
func (c *Roller) VerifyServer(ctx context.Context) error {
	config, err := c.newServerConfig(ctx)
	if err != nil {
		return err
	}
	if err := c.compareSettings(ctx); err != nil {
		return err
	}
	s := &servers{note: c.note, patiently: func(ctx context.Context, do func(ctx context.Context) error) error {
		return c.poll(ctx, func(ctx context.Context) (string, error) { return "", do(ctx) })
	}}
	if s.before, err = newServer(c.Inside); err != nil {
		return fmt.Errorf("asking the old API server: %w", err)
	}
	if err := c.meet(ctx, s, config); err != nil {
		return err
	}
	if err := s.patiently(ctx, func(ctx context.Context) error { return c.compareNames(ctx, config) }); err != nil {
		return err
	}
	if err := c.compareCallbacks(ctx, s); err != nil {
		return err
	}
	if err := s.compareObjects(ctx); err != nil {
		return err
	}
	for _, compare := range []func(context.Context) error{s.compareSecrets, s.compareTokens} {
		if err := s.patiently(ctx, compare); err != nil {
			return err
		}
	}
	return nil
}

// meet connects to the new API server. An ingress may take a while to lead to it, and it may take a while to reach the APIs that others serve.
func (c *Roller) meet(ctx context.Context, s *servers, config *rest.Config) error {
	since := c.Clock.Now()
	err := c.poll(ctx, func(context.Context) (string, error) {
		var err error
		s.after, err = newServer(config)
		switch {
		case misled(err) && c.Clock.Since(since) < ingressTakes:
			return "the management cluster's ingress to lead to " + config.ServerName, nil
		case misled(err):
			return "", c.elsewhere(err)
		case err != nil:
			return "", fmt.Errorf("asking the new API server: %w", err)
		}
		// The new machine's way to Services takes a while to come up.
		if away := s.onlyAway(); len(away) > 0 {
			return "the new API server to reach the aggregated API " + strings.Join(away, ", "), nil
		}
		return "", nil
	})
	if err != nil {
		return err
	}
	if away := slices.Sorted(maps.Keys(s.after.away)); len(away) > 0 {
		s.note("not compared, because neither API server reaches it: %s", strings.Join(away, ", "))
	}
	return nil
}

// securePort is the port of the API server on the machine.
func (c *Roller) securePort() int {
	if c.Picture.Config != nil && c.Picture.Config.Object.Spec.Cluster.Kubernetes.API.SecurePort > 0 {
		return c.Picture.Config.Object.Spec.Cluster.Kubernetes.API.SecurePort
	}
	return 443
}

// newServerClients are the clients of a server that nobody has asked for what it serves.
func newServerClients(config *rest.Config) (*server, error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	extensions, err := apiextensions.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &server{clients: clients, extensions: extensions, metadata: objects, resources: map[schema.GroupResource]resource{}, away: map[string]bool{}}, nil
}

func newServer(config *rest.Config) (*server, error) {
	s, err := newServerClients(config)
	if err != nil {
		return nil, err
	}
	lists, err := s.clients.Discovery().ServerPreferredResources()
	// What an aggregated API serves that is down cannot be compared.
	failed := &discovery.ErrGroupDiscoveryFailed{}
	switch {
	case errors.As(err, &failed):
		for version := range failed.Groups {
			s.away[version.String()] = true
		}
	case err != nil:
		return nil, err
	}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "get") {
				s.resources[schema.GroupResource{Group: version.Group, Resource: r.Name}] = resource{version.WithResource(r.Name), r.Namespaced}
			}
		}
	}
	return s, nil
}

// compareObjects compares the objects of every resource, each at one moment of etcd, some resources at a time: etcd needs both members meanwhile, and a hundred questions one after the other take as
// long as both servers do for each.
func (s *servers) compareObjects(ctx context.Context) error {
	names := slices.SortedFunc(maps.Keys(s.before.resources), func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) })
	compared := make([]int, 0, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atATime)
	for _, name := range names {
		old := s.before.resources[name]
		fresh, both := s.after.resources[name]
		if !both {
			s.note("the new API server does not serve %s any more", name)
			continue
		}
		compared = append(compared, 0)
		n := &compared[len(compared)-1]
		group.Go(func() error {
			err := s.patiently(ctx, func(ctx context.Context) (err error) {
				*n, err = s.compareResource(ctx, old, fresh)
				return err
			})
			if err != nil {
				return fmt.Errorf("comparing %s: %w", name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	total := 0
	for _, n := range compared {
		total += n
	}
	s.note("both API servers show the same %d objects of %d kinds", total, len(compared))
	return nil
}

// pageSize bounds one answer.
const pageSize = 500

// compareResource lists a resource at the old server, and at the new one the same moment.
func (s *servers) compareResource(ctx context.Context, old, fresh resource) (int, error) {
	before, version, err := s.before.versions(ctx, old, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	if version == "" {
		return 0, nil // What is made up when it is asked for, as componentstatuses, is not in etcd.
	}
	after, _, err := s.after.versions(ctx, fresh, metav1.ListOptions{ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err != nil {
		return 0, err
	}
	for key, want := range before {
		if has := after[key]; has != want {
			return 0, fmt.Errorf("%w: %s is %q there and %q here", ErrDiffers, key, want, has)
		}
	}
	for key := range after {
		if _, known := before[key]; !known {
			return 0, fmt.Errorf("%w: %s is only there", ErrDiffers, key)
		}
	}
	return len(before), nil
}

// versions are UID and resource version of every object of a resource, and the moment at which that was so.
func (s *server) versions(ctx context.Context, r resource, opts metav1.ListOptions) (map[string]string, string, error) {
	all, at := map[string]string{}, ""
	opts.Limit = pageSize
	for {
		page, err := s.metadata.Resource(r.GroupVersionResource).List(ctx, opts)
		if err != nil {
			return nil, "", err
		}
		if at == "" {
			at = page.ResourceVersion
		}
		for i := range page.Items {
			o := &page.Items[i]
			all[o.Namespace+"/"+o.Name] = string(o.UID) + " " + o.ResourceVersion
		}
		if page.Continue == "" {
			return all, at, nil
		}
		opts = metav1.ListOptions{Limit: pageSize, Continue: page.Continue}
	}
}

// compareSecrets compares what the servers make of encrypted values. Only digests are kept, and none is shown.
func (s *servers) compareSecrets(ctx context.Context) error {
	read := func(from *server) (map[string]string, error) {
		digests := map[string]string{}
		opts := metav1.ListOptions{Limit: pageSize}
		for {
			page, err := from.clients.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, opts)
			if err != nil {
				return nil, err
			}
			for i := range page.Items {
				raw, err := json.Marshal(page.Items[i].Data)
				if err != nil {
					return nil, err
				}
				sum := sha256.Sum256(raw)
				digests[page.Items[i].Namespace+"/"+page.Items[i].Name+" "+page.Items[i].ResourceVersion] = hex.EncodeToString(sum[:])
			}
			if opts.Continue = page.Continue; opts.Continue == "" {
				return digests, nil
			}
		}
	}
	before, err := read(s.before)
	if err != nil {
		return fmt.Errorf("reading Secrets from the old API server: %w", err)
	}
	after, err := read(s.after)
	if err != nil {
		return fmt.Errorf("reading Secrets from the new API server: %w", err)
	}
	same := 0
	for name, digest := range before {
		// One that was changed in between has another resource version and is left out.
		if has, both := after[name]; both && has != digest {
			return fmt.Errorf("%w: the value of Secret %s is another one", ErrDiffers, name)
		} else if both {
			same++
		}
	}
	if same == 0 && len(before) > 0 {
		return fmt.Errorf("%w: none of %d Secrets could be compared", ErrDiffers, len(before))
	}
	s.note("both API servers read the same values in %d Secrets", same)
	return nil
}

// compareTokens lets each server judge the other's tokens, and the new one those in Secrets.
func (s *servers) compareTokens(ctx context.Context) error {
	for _, pair := range []struct {
		issuer, judge *server
		what          string
	}{{s.before, s.after, "the new API server a token of the old one"}, {s.after, s.before, "the old API server a token of the new one"}} {
		made, err := pair.issuer.clients.CoreV1().ServiceAccounts(systemNamespace).CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("asking for a token of ServiceAccount %s/default: %w", systemNamespace, err)
		}
		if err := pair.judge.accepts(ctx, made.Status.Token, pair.what); err != nil {
			return err
		}
	}
	old, err := s.before.clients.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeServiceAccountToken), Limit: pageSize})
	if err != nil {
		return fmt.Errorf("looking for a token in a Secret: %w", err)
	}
	for i := range old.Items {
		secret := &old.Items[i]
		token := string(secret.Data[corev1.ServiceAccountTokenKey])
		if token == "" {
			continue
		}
		// Also Secrets of ServiceAccounts that are long gone hold one.
		if err := s.before.accepts(ctx, token, "the token in a Secret"); errors.Is(err, ErrDiffers) {
			continue
		} else if err != nil {
			return err
		}
		if err := s.after.accepts(ctx, token, "the new API server the token in Secret "+secret.Namespace+"/"+secret.Name); err != nil {
			return err
		}
		s.note("each API server accepts a token of the other one, and the new one that in Secret %s/%s", secret.Namespace, secret.Name)
		return nil
	}
	s.note("each API server accepts a token of the other one; no Secret holds one, so no older one was tried")
	return nil
}

// accepts has a server review a token.
func (s *server) accepts(ctx context.Context, token, what string) error {
	review, err := s.clients.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("reviewing a token: %w", err)
	case !review.Status.Authenticated:
		return fmt.Errorf("%w: %s was not accepted: %s", ErrDiffers, what, review.Status.Error)
	}
	return nil
}

// kubeadmLeavings are what kubeadm init and CAPBK leave in the cluster besides the Node (init-join-proof.md 10; kubeadm v1.22). The name of the
// kubelet's configuration carries the version.
func kubeadmLeavings() []leaving {
	rbac := func(kind string) schema.GroupVersionKind {
		return schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: kind}
	}
	return []leaving{
		{coreKind("ConfigMap"), systemNamespace, "kubeadm-config", false},
		{coreKind("ConfigMap"), systemNamespace, "kubelet-config", true},
		{coreKind("ConfigMap"), metav1.NamespacePublic, "cluster-info", false},
		{rbac("RoleBinding"), metav1.NamespacePublic, "kubeadm:bootstrap-signer-clusterinfo", false},
		{rbac("Role"), metav1.NamespacePublic, "kubeadm:bootstrap-signer-clusterinfo", false},
		{rbac("RoleBinding"), systemNamespace, "kubeadm:", true},
		{rbac("Role"), systemNamespace, "kubeadm:", true},
		{rbac("ClusterRoleBinding"), "", "kubeadm:", true},
		{rbac("ClusterRole"), "", "kubeadm:", true},
		{coreKind("Secret"), systemNamespace, "bootstrap-token-", true},
	}
}

// leaving is an object, or with prefix all whose name begins so.
type leaving struct {
	schema.GroupVersionKind

	namespace, name string
	prefix          bool
}

func (l leaving) is(name string) bool {
	return name == l.name || l.prefix && strings.HasPrefix(name, l.name)
}

// Clean removes from the workload cluster what the new machine left there: its Node, which Cluster API does not delete because it belongs to the only
// control plane Machine, its static pods, and what kubeadm made. What was called so before stays. It comes after the machine is gone.
func (c *Roller) Clean(ctx context.Context) error {
	ours := c.providerIDPrefix()
	nodes, err := adopt.List(ctx, c.Workload.Client, coreKind("Node"), "")
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if !c.isNewNode(nodes[name], ours) {
			continue
		}
		if err := c.cleanNode(ctx, nodes[name]); err != nil {
			return err
		}
	}
	before, err := c.before(ctx)
	if err != nil {
		return err
	}
	left, err := c.leavings(ctx)
	if err != nil {
		return err
	}
	for _, o := range left {
		target := kube.TargetOf(o)
		if slices.Contains(before, target.String()) {
			c.note("%s stays: it was there before the new machine, which may have changed it", target)
			continue
		}
		if err := c.Workload.Writer.Delete(ctx, target, metav1.DeletePropagationBackground); err != nil {
			return err
		}
	}
	return nil
}

// leavings are the objects in the workload cluster that are called like what kubeadm leaves, in the order in which they go. What a step of this migration has made goes with that step:
// a rollback that is interrupted in between and goes forward again does not take that step once more.
func (c *Roller) leavings(ctx context.Context) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for _, l := range kubeadmLeavings() {
		found, err := adopt.List(ctx, c.Workload.Client, l.GroupVersionKind, l.namespace)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			if l.is(name) && !c.made(found[name]) {
				out = append(out, found[name])
			}
		}
	}
	return out, nil
}

// providerIDPrefix begins the provider IDs of all machines of the cluster.
func (c *Roller) providerIDPrefix() string { return "kvm://" + c.Picture.ID + "/" }

// isNewNode tells that a Node belongs to a machine of this cluster that is not an adopted one: the new control plane's,
// also when kubeadm has not labelled it yet. While its KubeadmControlPlane is paused no Machine is linked with it, and workers are at once.
func (c *Roller) isNewNode(node *unstructured.Unstructured, prefix string) bool {
	id := text(node, "spec", "providerID")
	if !strings.HasPrefix(id, prefix) || id == prefix {
		return false
	}
	for i := range c.Picture.Nodes {
		if pod := c.Picture.Nodes[i].Pod; pod != nil && pod.Object.Name == node.GetName() {
			return false
		}
	}
	_, master := node.GetLabels()["node-role.kubernetes.io/control-plane"]
	_, linked := node.GetAnnotations()[clusterv1.MachineAnnotation]
	return master || !linked
}

// cleanNode deletes a Node and its static pods, whose mirrors nobody else would remove.
func (c *Roller) cleanNode(ctx context.Context, node *unstructured.Unstructured) error {
	pods, err := adopt.List(ctx, c.Workload.Client, coreKind("Pod"), systemNamespace)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		_, mirror := pods[name].GetAnnotations()[corev1.MirrorPodAnnotationKey]
		if mirror && text(pods[name], "spec", "nodeName") == node.GetName() {
			if err := c.Workload.Writer.DeleteNow(ctx, kube.TargetOf(pods[name])); err != nil {
				return err
			}
		}
	}
	return c.removed(ctx, c.Workload, node)
}
