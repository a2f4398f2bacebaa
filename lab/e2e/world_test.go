//go:build e2e

package e2e

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/clusterctl"
)

// kubernetesVersion of the workload cluster: the one the lab's guest image has.
const kubernetesVersion = builder.KubernetesVersion

// With -work the lab and its clusters stay, also when the test fails, and with -from a later run goes on with one of the steps. -skip leaves steps out that the one in question does not need:
//
//	go test -tags e2e ./e2e -run TestProvider -v -args -work /tmp/e2e -from "a worker is added"
//	go test -tags e2e ./e2e -run TestProvider -v -args -skip "rolled|become ready|workload|killed|no controller|added|unhealthy|draining"
var (
	keep = flag.String("work", "", "directory for the lab; kept afterwards")
	from = flag.String("from", "", "step to begin with, in a lab that was kept")
	skip = flag.String("skip", "", "regular expression of steps to leave out")
)

// newWorld finds or builds the programs and chooses directories. The lab is taken down at the end, whatever happened.
func newWorld(t *testing.T) *world {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	build, err := builder.New(builder.Options{Out: os.Stderr})
	require.NoError(t, err)
	built, err := build.Ensure(t.Context(), builder.Kubectl, builder.Clusterctl, builder.Etcdctl, builder.Fortio)
	require.NoError(t, err)
	work := *keep
	if work == "" {
		work = t.TempDir()
	} else {
		work = filepath.Join(work, t.Name()) // Each walk has a lab of its own, so that one that failed is in no other's way.
		require.NoError(t, os.MkdirAll(work, 0o750))
	}
	w := &world{
		t: t, clock: clock.RealClock{}, start: clock.RealClock{}.Now(), told: os.Stderr,
		lab: filepath.Join(root, "bin", "lab"), kubectl: built[builder.Kubectl], clusterctl: built[builder.Clusterctl], etcd: built[builder.Etcdctl],
		migrate: filepath.Join(root, "bin", "migrate"), fortio: built[builder.Fortio],
		work: work, dir: filepath.Join(work, "lab"), config: filepath.Join(work, "repository", "clusterctl.yaml"),
	}
	require.FileExists(t, w.lab, "make build")
	t.Cleanup(func() {
		if *keep != "" {
			if _, err := os.Stat(w.dir); err == nil {
				w.say("the lab is kept: %s status --dir %s", w.lab, w.dir)
			}
			return
		}
		// The test's own context is over by now, and the lab has to go in any case.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), short)
		defer cancel()
		_, err := w.run(ctx, "", w.lab, "down", "--dir", w.dir)
		require.NoError(t, err)
	})
	return w
}

// writeRepository makes the local repository that clusterctl installs the providers from.
func (w *world) writeRepository(ctx context.Context) { w.publish(ctx, clusterctl.DefaultVersion) }

// publish puts a version of this provider into the repository, beside those that are there, as its latest.
func (w *world) publish(ctx context.Context, version string) {
	w.t.Helper()
	command := exec.CommandContext(ctx, "go", "run", "./clusterctl/repository", "-version", version, "-out", filepath.Join(w.work, "repository"))
	command.Dir, command.Stderr = "..", os.Stderr
	require.NoError(w.t, command.Run())
}

// etcdctl is the program's path.
func (w *world) etcdctl() string { return w.etcd }

// echoManifest is the workload: two pods behind a Service with a disruption budget, and a client that asks for the Service by name.
const echoManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: echo, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
        - name: echo
          image: lab.test/echo:1
          imagePullPolicy: Never
          ports: [{containerPort: 8080}]
          readinessProbe: {httpGet: {path: /, port: 8080}, timeoutSeconds: 10}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: echo, namespace: shop}
spec:
  minAvailable: 1
  selector: {matchLabels: {app: echo}}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: shop}
spec:
  selector: {app: echo}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: client, namespace: shop}
spec:
  selector: {matchLabels: {app: client}}
  template:
    metadata: {labels: {app: client}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: client
          image: lab.test/echo:1
          imagePullPolicy: Never
`

// networkAddon is the pod network's manifest, as the guest images have it preloaded.
func networkAddon() string { return filepath.Join("..", "guest", "addons", "network.yaml") }
