package migrationtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/manager"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/clusterctl"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/etcdtest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/ingress"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
)

const (
	stopLimit = time.Minute
	// launcherImage is only written down: no pod of a new machine ever starts here.
	launcherImage = "lab.invalid/vm-launcher:none"
)

// World is one management cluster with everything a migration needs, shared by
// the tests of a binary.
type World struct {
	// Management is the management cluster. It is everybody's: a test that takes
	// it away must not run in parallel with others.
	Management *API
	// Client knows the kinds of the provider, of Cluster API and of Kubernetes.
	// It writes as the administrator.
	Client client.Client

	source  string
	fleet   string
	names   *names
	kubelet *kubelet
	routes  *ingress.Routes
	log     *logrus.Logger

	mu     sync.Mutex
	number int
}

// Main runs the tests of a package in a private network with a World and
// returns the exit code for os.Exit. With -short there is no World: use is not
// called, and [World.Cluster] skips the test.
func Main(m *testing.M, use func(*World)) int {
	flag.Parse()
	if testing.Short() {
		return m.Run()
	}
	ctx := context.Background()
	if !labnet.Inside() {
		if err := prebuild(ctx); err != nil {
			return complain(fmt.Errorf("building what the tests need: %w", err))
		}
	}
	return labnet.Main(func() int {
		w, err := start(ctx)
		if err != nil {
			return complain(fmt.Errorf("starting the world for the tests: %w", err))
		}
		use(w)
		code := m.Run()
		if err := w.stop(); err != nil {
			return complain(err)
		}
		return code
	})
}

func complain(err error) int {
	_, _ = fmt.Fprintln(os.Stderr, err)
	return 1
}

// prebuild happens outside, where modules can be downloaded.
func prebuild(ctx context.Context) error {
	if err := (mc.Options{Parts: mc.ControllerManager | mc.ClusterAPI, Provider: mc.ProviderProcess}).Prebuild(ctx); err != nil {
		return err
	}
	b, err := builder.New(builder.Options{Out: os.Stderr})
	if err != nil {
		return err
	}
	// Some tests compare with it.
	if _, err := b.Ensure(ctx, clusterctl.Components()...); err != nil {
		return err
	}
	// One restores from a snapshot as people would, with the program of the legacy version, which most workload clusters have.
	if _, err := etcdtest.Build(ctx, true, builder.Etcdctl, builder.Etcd); err != nil {
		return err
	}
	_, _, err = buildFleet(ctx)
	return err
}

// buildFleet returns the top of the working tree and the program that makes
// legacy clusters.
func buildFleet(ctx context.Context) (source, fleet string, err error) {
	cwd, err := os.Getwd()
	if err != nil {
		return "", "", fmt.Errorf("reading the working directory: %w", err)
	}
	if source, err = builder.FindSource(cwd); err != nil {
		return "", "", err
	}
	b, err := builder.New(builder.Options{Out: os.Stderr})
	if err != nil {
		return "", "", err
	}
	programs, err := b.Local(ctx, source, builder.Fleet)
	if err != nil {
		return "", "", err
	}
	return source, programs[builder.Fleet], nil
}

// start makes the World. Steps: network and names; the management cluster; what
// stands in for Deployments of Cluster API; the kubelet.
func start(ctx context.Context) (_ *World, err error) {
	w := &World{log: logrus.New()}
	w.log.SetOutput(os.Stderr)
	w.log.SetLevel(logrus.WarnLevel)
	if w.source, w.fleet, err = buildFleet(ctx); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "migrationtest-")
	if err != nil {
		return nil, fmt.Errorf("making a directory: %w", err)
	}
	if err := labnet.Setup(0, dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if out, err := exec.CommandContext(ctx, "ip", "address", "add", machineNetwork, "dev", "lo").CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("making a network for machines: %w: %s", err, out), os.RemoveAll(dir))
	}
	if w.names, err = serveNames(ctx, labnet.Gateway); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	w.Management, err = startAPI(ctx, dir, mc.Options{
		Parts: mc.ControllerManager | mc.ClusterAPI, Provider: mc.ProviderProcess, Source: w.source,
		CRDDirs: []string{
			filepath.Join(w.source, "testdata", "management-cluster", "crds.yaml"),
			filepath.Join(w.source, "config", "crd", "migration"),
		},
		ExtraArgs: map[string][]string{builder.CAPKController: {"--launcher-image=" + launcherImage}},
	})
	if err != nil {
		return nil, errors.Join(err, w.names.close())
	}
	if err := w.complete(ctx); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	return w, nil
}

// complete adds what needs the API server.
func (w *World) complete(ctx context.Context) error {
	scheme, err := manager.NewScheme()
	if err != nil {
		return fmt.Errorf("making a scheme: %w", err)
	}
	if w.Client, err = client.New(w.Management.Config(), client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if err := w.describeControllers(ctx); err != nil {
		return err
	}
	full, err := kubernetes.NewForConfig(w.Management.Config())
	if err != nil {
		return fmt.Errorf("making the kubelet's client: %w", err)
	}
	if err := w.follow(ctx, full); err != nil {
		return err
	}
	w.kubelet, err = startKubelet(full, w.log)
	return err
}

// follow learns which Ingress leads where, as an ingress controller does. Legacy
// Ingresses name no class.
func (w *World) follow(ctx context.Context, full kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactory(full, 0)
	var err error
	if w.routes, err = ingress.NewRoutes(factory, ""); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), w.routes.Synced) {
		return fmt.Errorf("reading Ingresses: %w", ctx.Err())
	}
	return nil
}

// describeControllers creates the Deployments by which a management cluster
// shows which Cluster API it runs. They are paused, so nothing comes of them:
// the managers run as processes.
func (w *World) describeControllers(ctx context.Context) error {
	for namespace, provider := range map[string]string{
		"capi-system": "cluster-api", "capi-kubeadm-bootstrap-system": "bootstrap-kubeadm", "capi-kubeadm-control-plane-system": "control-plane-kubeadm",
	} {
		labels := map[string]string{"cluster.x-k8s.io/provider": provider, "control-plane": "controller-manager"}
		deployment := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: provider + "-controller-manager", Labels: labels},
			Spec: appsv1.DeploymentSpec{
				Paused: true, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: "lab.invalid/" + provider + ":" + builder.ClusterAPIVersion}}},
				},
			},
		}
		if err := w.Client.Create(ctx, deployment); err != nil {
			return fmt.Errorf("describing the controllers of Cluster API: %w", err)
		}
	}
	return nil
}

// stop ends everything. Clusters have stopped with their tests.
func (w *World) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	if w.kubelet != nil {
		w.kubelet.stop()
	}
	return errors.Join(w.Management.Stop(ctx), w.names.close())
}

// next numbers the clusters of this World.
func (w *World) next() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.number++
	return w.number
}
