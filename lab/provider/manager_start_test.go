package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/logging"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/manager"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
)

const (
	managerNamespace = "capk-system"
	managerAccount   = "system:serviceaccount:" + managerNamespace + ":capk-manager"
	// resync is short, so that a steady state is looked at many times while a test waits.
	resync = 2 * time.Second
)

// managerLab is a management cluster with the real Cluster API controllers, in which the whole manager runs in this process: with what
// config/default installs, and with the rights of its service account.
type managerLab struct {
	client.Client

	management *mc.Cluster
	options    *manager.Options
	traffic    *traffic
	log        *lockedBuffer
}

var theManagerLab = sync.OnceValues(func() (*managerLab, error) { return startManagerLab(context.Background()) })

func needManagerLab(t *testing.T) *managerLab {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a cluster, and there is none with -short")
	}
	lab, err := theManagerLab()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, lab.traffic.refusals(), "the manager was refused something: config/rbac does not suffice")
		if t.Failed() && testing.Verbose() {
			t.Log(lab.log.String())
		}
	})
	return lab
}

func startManagerLab(ctx context.Context) (*managerLab, error) {
	lab := &managerLab{traffic: &traffic{}, log: &lockedBuffer{}}
	var err error
	lab.management, err = mc.Start(ctx, mc.Options{Parts: mc.Everything, CRDDirs: []string{filepath.Join("..", "..", "config", "crd", "bases")}})
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	if lab.Client, err = client.New(lab.management.Config(), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	ports, err := lab.management.FreePorts(ctx, 3)
	if err != nil {
		return nil, err
	}
	if err := lab.install(ctx, ports[0]); err != nil {
		return nil, err
	}
	return lab, lab.start(ctx, ports)
}

// renderDefault renders what clusterctl installs.
func renderDefault() ([]*unstructured.Unstructured, error) { return render("default") }

// render builds a directory of config as kubectl -k would.
func render(directory string) ([]*unstructured.Unstructured, error) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("..", "..", "config", directory))
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, r := range resources.Resources() {
		raw, err := r.MarshalJSON()
		if err != nil {
			return nil, err
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw); err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// install creates namespace, rights and webhooks as rendered. The Deployment is this process, and certificates are the lab's.
func (l *managerLab) install(ctx context.Context, port int) error {
	objects, err := renderDefault()
	if err != nil {
		return err
	}
	for _, wave := range [][]string{{"Namespace"}, {"ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding"}} {
		var some []*unstructured.Unstructured
		for _, o := range objects {
			if slices.Contains(wave, o.GetKind()) {
				some = append(some, o)
			}
		}
		if err := manifest.Ensure(ctx, l.management.Client(), some); err != nil {
			return err
		}
	}
	for _, o := range objects {
		if o.GetKind() != "ValidatingWebhookConfiguration" {
			continue
		}
		raw, err := yaml.Marshal(o.Object)
		if err != nil {
			return err
		}
		file := filepath.Join(l.management.Dir(), "capk-webhooks.yaml")
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			return err
		}
		return l.management.InstallWebhooks(ctx, file, fmt.Sprintf("https://127.0.0.1:%d", port))
	}
	return errors.New("config/default renders no webhooks")
}

func (l *managerLab) start(ctx context.Context, ports []int) error {
	raw, err := l.management.KubeconfigFor(managerAccount, "system:serviceaccounts", "system:serviceaccounts:"+managerNamespace)
	if err != nil {
		return err
	}
	rc, err := clientcmd.RESTConfigFromKubeConfig(raw)
	if err != nil {
		return err
	}
	rc.Wrap(l.traffic.watch)
	certs, err := l.management.ServingCert("capk-controller")
	if err != nil {
		return err
	}
	o := manager.NewOptions()
	l.options = o
	o.WebhookHost, o.WebhookPort, o.WebhookCertDir = "127.0.0.1", ports[0], certs
	o.HealthAddress = fmt.Sprintf("127.0.0.1:%d", ports[1])
	o.Servers.TLSMinVersion, o.Servers.InsecureDiagnostics, o.Servers.DiagnosticsAddress = "VersionTLS12", true, fmt.Sprintf("127.0.0.1:%d", ports[2])
	o.LeaderElect, o.LeaderNamespace = true, managerNamespace
	o.LeaseDuration, o.RenewDeadline = time.Hour, 59*time.Minute // A machine that stands still for some seconds ends nothing.
	o.SyncPeriod = resync
	o.Machines.Image = "launcher:test"
	if err := o.Validate(); err != nil {
		return err
	}
	logger, err := logging.New(logging.Options{Out: l.log})
	if err != nil {
		return err
	}
	return l.run(ctx, rc, logger)
}

// run starts the manager and returns when it is ready, or why it is not.
func (l *managerLab) run(ctx context.Context, rc *rest.Config, logger *logrus.Logger) error {
	ctrl.SetLogger(logging.Logr(logger))
	failed := make(chan error, 1)
	go func() { failed <- manager.Run(ctx, rc, l.options, manager.NewVersion("v0.0.0-test"), logger) }()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		response, err := http.Get("http://" + l.options.HealthAddress + "/readyz")
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-failed:
			return fmt.Errorf("starting the manager: %w\n%s", err, l.log)
		case <-deadline:
			return fmt.Errorf("the manager is not ready: %w\n%s", err, l.log)
		case <-tick.C:
		}
	}
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// traffic is what the manager asked the API server for.
type traffic struct {
	mu      sync.Mutex
	written []string
	refused []string
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (c *traffic) watch(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		what := r.Method + " " + r.URL.Path
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil && response.StatusCode == http.StatusForbidden {
			c.refused = append(c.refused, what)
		}
		if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/leases") {
			c.written = append(c.written, what)
		}
		return response, err
	})
}

func (c *traffic) refusals() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.refused)
}

// writes returns what was written below a namespace since the n-th write.
func (c *traffic) writes(namespace string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var some []string
	for _, w := range c.written {
		if strings.Contains(w, "/namespaces/"+namespace+"/") {
			some = append(some, w)
		}
	}
	return some
}

// scene is a namespace of its own with a Cluster.
type scene struct {
	*managerLab

	namespace string
	cluster   *clusterv1.Cluster
}

// newScene creates a Cluster with a KVMCluster.
func (l *managerLab) newScene(t *testing.T, spec infrav1.KVMClusterSpec) *scene {
	t.Helper()
	s := &scene{managerLab: l, namespace: "org-" + rand.String(6)}
	require.NoError(t, l.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}))
	infra := &infrav1.KVMCluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "demo"}, Spec: spec}
	require.NoError(t, l.Create(t.Context(), infra))
	s.cluster = &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "demo"},
		Spec:       clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupName, Kind: "KVMCluster", Name: "demo"}},
	}
	require.NoError(t, l.Create(t.Context(), s.cluster))
	return s
}

func (s *scene) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: s.namespace, Name: name}
}

// find reads an object of the scene and says whether it is there.
func (s *scene) find(t *testing.T, name string, into client.Object) bool {
	t.Helper()
	err := s.Get(t.Context(), s.key(name), into)
	require.NoError(t, client.IgnoreNotFound(err))
	return err == nil
}

// until waits for something to become true.
func (s *scene) until(t *testing.T, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, within, interval, what)
}
