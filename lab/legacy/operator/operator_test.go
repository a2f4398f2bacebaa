package operator_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/cluster"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/operator"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mctest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/seed"
)

const (
	version = "3.18.6"
	soon    = 2 * time.Minute
	often   = 50 * time.Millisecond
	paused  = "cluster.x-k8s.io/paused"
)

var (
	// management has a controller manager: Deployments get ReplicaSets, and these get pods.
	management *mc.Cluster
	// workload is an API server alone: what a workload cluster is to an operator.
	workload *mc.Cluster
	// template is the cluster that every test's is a copy of.
	template *cluster.Cluster
)

func TestMain(m *testing.M) {
	os.Exit(mctest.Main(m, mc.Options{Parts: mc.ControllerManager}, func(c *mc.Cluster) {
		management = c
		if err := prepare(context.Background()); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}))
}

// prepare loads what clusters share and starts the second API server.
func prepare(ctx context.Context) error {
	var err error
	if template, err = cluster.New(cluster.Options{Testdata: filepath.Join("..", "..", "..", "testdata"), Workers: 2, Now: time.Now()}); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "legacy-operator-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // Files of a test.
	shared := *template
	shared.Objects = nil
	for _, o := range template.Objects {
		switch o.GetKind() {
		case manifest.CRDKind, "ClusterRole", "ClusterRoleBinding", "ServiceAccount", "StorageClass", desired.KindRelease:
			shared.Objects = append(shared.Objects, o)
		case "Namespace":
			if o.GetName() != cluster.ID {
				shared.Objects = append(shared.Objects, o)
			}
		}
	}
	if err := shared.Write(dir); err != nil {
		return err
	}
	if _, err := seed.Load(ctx, management.Config(), []string{dir}, seed.Options{ControllerManager: true}); err != nil {
		return err
	}
	// It ends with this process, as everything does that mc starts.
	workload, err = mc.Start(ctx, mc.Options{})
	return err
}

// world is a cluster of a test and its operator.
type world struct {
	t  *testing.T
	id string
	// admin sees everything; the operator has the rights its chart gives it.
	admin, workload client.Client
	kvm             *operator.KVM
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if management == nil {
		t.Skip("needs a cluster, and there is none with -short")
	}
	w := &world{t: t, id: "t" + strings.ToLower(rand5(t))}
	var err error
	for c, to := range map[*mc.Cluster]*client.Client{management: &w.admin, workload: &w.workload} {
		config := c.Config()
		config.WarningHandler = rest.NoWarnings{} // Endpoints are deprecated; the platform is old.
		*to, err = client.New(config, client.Options{})
		require.NoError(t, err)
	}
	for _, o := range template.Objects {
		switch o.GetKind() {
		case desired.KindKVMConfig, desired.KindKVMClusterConfig, desired.KindFlannelConfig:
			fresh := o.DeepCopy()
			fresh.Object, _ = renamed(fresh.Object, w.id).(map[string]any)
			fresh.SetFinalizers(nil)
			// Node ports are of the whole management cluster.
			if o.GetKind() == desired.KindKVMConfig {
				require.NoError(t, unstructured.SetNestedSlice(fresh.Object, []any{}, "spec", "kvm", "portMappings"))
			}
			require.NoError(t, w.admin.Create(t.Context(), fresh))
			t.Cleanup(func() { w.destroy(fresh) })
		}
	}
	w.kvm = w.operator(version)
	t.Cleanup(w.clean)
	return w
}

// rand5 is unique per test, and the same at every run.
func rand5(t *testing.T) string {
	t.Helper()
	sum := uint32(2166136261)
	for _, b := range []byte(t.Name()) {
		sum = (sum ^ uint32(b)) * 16777619
	}
	return fmt.Sprintf("%04x", sum)[:4]
}

func renamed(value any, id string) any {
	switch v := value.(type) {
	case string:
		return strings.ReplaceAll(v, cluster.ID, id)
	case map[string]any:
		for k, x := range v {
			v[k] = renamed(x, id)
		}
	case []any:
		for i, x := range v {
			v[i] = renamed(x, id)
		}
	}
	return value
}

// operator is a kvm-operator of a version, with the rights of its service account.
func (w *world) operator(version string) *operator.KVM {
	w.t.Helper()
	name := desired.ClusterRole(version)
	raw, err := management.KubeconfigFor("system:serviceaccount:giantswarm:"+name, "system:serviceaccounts", "system:serviceaccounts:giantswarm")
	require.NoError(w.t, err)
	config, err := clientcmd.RESTConfigFromKubeConfig(raw)
	require.NoError(w.t, err)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	c, err := client.New(config, client.Options{})
	require.NoError(w.t, err)
	return &operator.KVM{
		Options:      operator.Options{Client: c, Version: version, Clock: clock.RealClock{}, Log: logrus.New()},
		Installation: template.Installation,
		Workload:     func(context.Context, *desired.Config) (client.Client, error) { return w.workload, nil },
	}
}

func (w *world) options(version string) operator.Options {
	return operator.Options{Client: w.admin, Version: version, Clock: clock.RealClock{}, Log: logrus.New()}
}

func (w *world) destroy(o *unstructured.Unstructured) {
	ctx := context.WithoutCancel(w.t.Context())
	err := w.admin.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
	require.NoError(w.t, client.IgnoreNotFound(err))
	require.NoError(w.t, client.IgnoreNotFound(w.admin.Delete(ctx, o)))
}

// clean removes what would disturb other tests: Deployments, pods and Nodes.
func (w *world) clean() {
	ctx := context.WithoutCancel(w.t.Context())
	require.NoError(w.t, w.admin.DeleteAllOf(ctx, &appsv1.Deployment{}, client.InNamespace(w.id)))
	require.NoError(w.t, w.workload.DeleteAllOf(ctx, &corev1.Node{}))
	for _, c := range w.certConfigs() {
		w.destroy(&c)
	}
	require.EventuallyWithT(w.t, func(t *assert.CollectT) {
		var pods corev1.PodList
		require.NoError(t, w.admin.List(ctx, &pods, client.InNamespace(w.id)))
		for i := range pods.Items {
			err := w.admin.Patch(ctx, &pods.Items[i], client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
			require.NoError(t, client.IgnoreNotFound(err))
			require.NoError(t, client.IgnoreNotFound(w.admin.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0))))
		}
		assert.Empty(t, pods.Items)
	}, soon, often)
}

// up reconciles and waits for the pods of all Deployments.
func (w *world) up() map[string]*corev1.Pod {
	w.t.Helper()
	require.NoError(w.t, w.kvm.Reconcile(w.t.Context()))
	return w.waitPods(3)
}

// waitPods waits for a number of pods that are not being deleted, and returns them by node id.
func (w *world) waitPods(n int) map[string]*corev1.Pod {
	w.t.Helper()
	all := map[string]*corev1.Pod{}
	require.EventuallyWithT(w.t, func(t *assert.CollectT) {
		var pods corev1.PodList
		require.NoError(t, w.admin.List(w.t.Context(), &pods, client.InNamespace(w.id)))
		clear(all)
		count := 0
		for i := range pods.Items {
			if pods.Items[i].DeletionTimestamp == nil {
				count++
				all[pods.Items[i].Labels["node"]] = &pods.Items[i]
			}
		}
		require.Equal(t, n, count)
	}, soon, often)
	return all
}

func (w *world) config() *unstructured.Unstructured {
	w.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(desired.GVK(desired.KindKVMConfig))
	require.NoError(w.t, w.admin.Get(w.t.Context(), client.ObjectKey{Namespace: operator.Namespace, Name: w.id}, o))
	return o
}

func (w *world) patch(o client.Object, patch string) {
	w.t.Helper()
	require.NoError(w.t, w.admin.Patch(w.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))))
}

func (w *world) annotate(o client.Object, key, value string) {
	w.t.Helper()
	w.patch(o, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value))
}

func (w *world) deployments() map[string]*appsv1.Deployment {
	w.t.Helper()
	var l appsv1.DeploymentList
	require.NoError(w.t, w.admin.List(w.t.Context(), &l, client.InNamespace(w.id)))
	all := map[string]*appsv1.Deployment{}
	for i := range l.Items {
		all[l.Items[i].Name] = &l.Items[i]
	}
	return all
}

func (w *world) deleteDeployment(name string, policy metav1.DeletionPropagation) {
	w.t.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.id, Name: name}}
	require.NoError(w.t, w.admin.Delete(w.t.Context(), d, client.PropagationPolicy(policy)))
	require.EventuallyWithT(w.t, func(t *assert.CollectT) { assert.NotContains(t, w.deployments(), name) }, soon, often)
}

// node makes a Node of the workload cluster.
func (w *world) node(name, role string, status corev1.ConditionStatus) *corev1.Node {
	w.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"role": role, desired.OperatorVersionLabel: version}}}
	require.NoError(w.t, w.workload.Create(w.t.Context(), n))
	w.setReady(n, status)
	return n
}

func (w *world) setReady(n *corev1.Node, status corev1.ConditionStatus) {
	w.t.Helper()
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	require.NoError(w.t, w.workload.Status().Update(w.t.Context(), n))
}

func (w *world) nodeExists(name string) bool {
	w.t.Helper()
	err := w.workload.Get(w.t.Context(), client.ObjectKey{Name: name}, &corev1.Node{})
	require.NoError(w.t, client.IgnoreNotFound(err))
	return err == nil
}
