package roll

import (
	"context"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientfake "k8s.io/client-go/kubernetes/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// with makes a control plane of cluster al9qy in a management cluster with some objects.
func with(t *testing.T, objects ...string) *Roller {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, clusterv1.AddToScheme(scheme))
	require.NoError(t, infrav1.AddToScheme(scheme))
	for _, kind := range []schema.GroupVersionKind{apiServiceKind(), policyKind()} {
		scheme.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
		scheme.AddKnownTypeWithName(kind.GroupVersion().WithKind(kind.Kind+"List"), &unstructured.UnstructuredList{})
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&clusterv1.Cluster{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }) //nolint:forcetypeassert // Nothing else is indexed.
	for _, text := range objects {
		o := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal([]byte(text), &o.Object))
		builder = builder.WithObjects(o)
	}
	c := builder.WithInterceptorFuncs(interceptor.Funcs{
		// A real server gives every object a UID.
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if o.GetUID() == "" {
				o.SetUID(types.UID("made-" + o.GetName()))
			}
			return c.Create(ctx, o, opts...)
		},
		// A real watch ends with its context.
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			w, err := c.Watch(ctx, list, opts...)
			if err == nil {
				context.AfterFunc(ctx, w.Stop)
			}
			return w, err
		},
	}).Build()
	return &Roller{Adopter: &adopt.Adopter{
		Picture: &legacy.Cluster{ID: "al9qy"}, Result: &translate.Result{Namespace: "org-acme"},
		Management: adopt.Side{Client: c, Writer: kube.NewWriter(c, kube.WriterOptions{})},
		Clock:      clocktesting.NewFakeClock(time.Unix(0, 0)), Patience: time.Second,
	}}
}

func TestAMachineThatWouldJoinIsNotStarted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		data string
		want string
	}{
		"init":           {"write_files: [{path: /run/kubeadm/kubeadm.yaml}]", ""},
		"join":           {"write_files: [{path: /run/kubeadm/kubeadm-join-config.yaml}]", "writes /run/kubeadm/kubeadm-join-config.yaml"},
		"both":           {"/run/kubeadm/kubeadm.yaml /run/kubeadm/kubeadm-join-config.yaml", "writes /run/kubeadm/kubeadm-join-config.yaml"},
		"something else": {"runcmd: []", "does not write /run/kubeadm/kubeadm.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			encoded := base64.StdEncoding.EncodeToString([]byte(test.data))
			c := with(t, "{apiVersion: v1, kind: Secret, metadata: {namespace: org-acme, name: boot, uid: u}, data: {value: "+encoded+"}}")
			err := c.looksLikeInit(t.Context(), "boot")
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrWouldJoin)
			assert.ErrorContains(t, err, test.want)
		})
	}
	require.ErrorIs(t, with(t).looksLikeInit(t.Context(), "boot"), adopt.ErrReplaced)
}

// TestAClusterForgetsThatItWasInitialized and nothing else.
func TestAClusterForgetsThatItWasInitialized(t *testing.T) {
	t.Parallel()
	c := with(t, `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: org-acme, name: al9qy, uid: u}
status:
  initialization: {infrastructureProvisioned: true, controlPlaneInitialized: true}
  conditions:
    - {type: ControlPlaneInitialized, status: "True", reason: Initialized, lastTransitionTime: "2026-01-01T00:00:00Z"}
    - {type: InfrastructureReady, status: "True", reason: Ready, lastTransitionTime: "2026-01-01T00:00:00Z"}
  deprecated:
    v1beta1:
      conditions:
        - {type: ControlPlaneInitialized, status: "True", lastTransitionTime: "2026-01-01T00:00:00Z"}
`)
	require.NoError(t, c.forgetInitialized(t.Context()))
	cluster := &clusterv1.Cluster{}
	require.NoError(t, c.Management.Client.Get(t.Context(), client.ObjectKey{Namespace: "org-acme", Name: "al9qy"}, cluster))
	require.Len(t, cluster.Status.Conditions, 1)
	assert.Equal(t, "InfrastructureReady", cluster.Status.Conditions[0].Type)
	assert.Empty(t, cluster.Status.Deprecated.V1Beta1.Conditions) //nolint:staticcheck // Cluster API still writes them.
	assert.Nil(t, cluster.Status.Initialization.ControlPlaneInitialized)
	assert.True(t, *cluster.Status.Initialization.InfrastructureProvisioned)

	before := cluster.ResourceVersion
	require.NoError(t, c.forgetInitialized(t.Context()))
	require.NoError(t, c.Management.Client.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster))
	assert.Equal(t, before, cluster.ResourceVersion, "what has nothing to forget is not written")
}

func TestOnlyWhatAdmitsStaticPodsIsPrivileged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spec string
		want bool
	}{
		"everything":    {"{privileged: true, hostNetwork: true, volumes: ['*']}", true},
		"no network":    {"{privileged: true, volumes: ['*']}", false},
		"some volumes":  {"{privileged: true, hostNetwork: true, volumes: [configMap]}", false},
		"unprivileged":  {"{hostNetwork: true, volumes: ['*']}", false},
		"of wrong type": {"{privileged: 'yes', hostNetwork: true, volumes: ['*']}", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy := &unstructured.Unstructured{Object: map[string]any{}}
			var spec map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(test.spec), &spec))
			policy.Object["spec"] = spec
			assert.Equal(t, test.want, privileged(policy))
		})
	}
}

// TestOnlyNewNodesAreCleaned leaves adopted Nodes and those of other clusters alone.
func TestOnlyNewNodesAreCleaned(t *testing.T) {
	t.Parallel()
	c := with(t)
	node := func(name, id string, master bool) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"providerID": id}}}
		o.SetName(name)
		if master {
			o.SetLabels(map[string]string{"node-role.kubernetes.io/control-plane": ""})
		}
		return o
	}
	c.Picture.Nodes = []legacy.Node{{Pod: pod("master-p1l6x")}}
	prefix := c.providerIDPrefix()
	assert.True(t, c.isNewNode(node("al9qy-abcde", "kvm://al9qy/al9qy-abcde", true), prefix))
	assert.False(t, c.isNewNode(node("master-p1l6x", "kvm://al9qy/al9qy-master", true), prefix), "the adopted master")
	assert.False(t, c.isNewNode(node("al9qy-abcde", "kvm://b4n9x/al9qy-abcde", true), prefix), "of another cluster")
	assert.False(t, c.isNewNode(node("al9qy-abcde", "kvm://al9qy/", true), prefix))
	assert.False(t, c.isNewNode(node("al9qy-abcde", "", true), prefix))
	assert.True(t, c.isNewNode(node("al9qy-abcde", "kvm://al9qy/al9qy-abcde", false), prefix), "kubeadm has not labelled it yet")
	worker := node("al9qy-worker-x", "kvm://al9qy/al9qy-worker-x", false)
	worker.SetAnnotations(map[string]string{clusterv1.MachineAnnotation: "al9qy-worker-x"})
	assert.False(t, c.isNewNode(worker, prefix), "a worker of Cluster API")
}

func pod(name string) *legacy.Doc[corev1.Pod] {
	return &legacy.Doc[corev1.Pod]{Object: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}}
}

func TestLeavingsOfKubeadmAreKnownByName(t *testing.T) {
	t.Parallel()
	exact, prefix := leaving{name: "kubeadm-config"}, leaving{name: "kubeadm:", prefix: true}
	assert.True(t, exact.is("kubeadm-config"))
	assert.False(t, exact.is("kubeadm-config-2"))
	assert.True(t, prefix.is("kubeadm:get-nodes"))
	assert.False(t, prefix.is("kubeadm"))
}

func TestEndpointsListWhoGetsTraffic(t *testing.T) {
	t.Parallel()
	subset := func(field, ip string, ports ...int64) map[string]any {
		out := map[string]any{field: []any{map[string]any{"ip": ip}}, "ports": []any{}}
		for _, p := range ports {
			out["ports"] = append(out["ports"].([]any), map[string]any{"port": p}) //nolint:forcetypeassert // It was just made.
		}
		return out
	}
	o := &unstructured.Unstructured{Object: map[string]any{"subsets": []any{
		subset("addresses", "10.0.0.1", 2379, 443), subset("notReadyAddresses", "10.0.0.2", 443), subset("addresses", "10.0.0.3", 443), subset("addresses", "10.0.0.4", 2379), int64(7),
	}}}
	assert.Equal(t, map[string]bool{"10.0.0.1": true, "10.0.0.3": true}, listedIn(o, 443))
	assert.Empty(t, listedIn(&unstructured.Unstructured{Object: map[string]any{"subsets": "none"}}, 443))
}

// TestABootstrapThatFailedIsSeen by what the provider says of it.
func TestABootstrapThatFailedIsSeen(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{"BootstrapFailed": "no route to etcd", "BootstrapRunning": "", "": ""} {
		o := &unstructured.Unstructured{Object: map[string]any{}}
		if reason != "" {
			o.Object["status"] = map[string]any{"conditions": []any{map[string]any{
				"type": infrav1.BootstrapExecSucceededCondition, "status": "False", "reason": reason, "message": "no route to etcd", "lastTransitionTime": "2026-01-01T00:00:00Z",
			}}}
		}
		assert.Equal(t, want, bootstrapFailure(o), reason)
	}
}

// firstNew are the first new control plane's Machine and its KVMMachine with a status.
func firstNew(status string) []string {
	return []string{`
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {namespace: org-acme, name: al9qy-cp-x, labels: {cluster.x-k8s.io/cluster-name: al9qy, cluster.x-k8s.io/control-plane: ""}}
spec: {infrastructureRef: {name: al9qy-cp-x}}
`, `
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: KVMMachine
metadata: {namespace: org-acme, name: al9qy-cp-x}
spec: {providerID: kvm://al9qy/al9qy-cp-x}
status: {` + status + `}
`}
}

// TestAWayBackThatIsGivenUpLeavesNoNodeClosed: the drain of the way back has cordoned the new Node, and pods of the legacy master go there.
func TestAWayBackThatIsGivenUpLeavesNoNodeClosed(t *testing.T) {
	t.Parallel()
	for _, cordoned := range []string{"true", "false"} {
		c := with(t, append(firstNew(""), `
apiVersion: v1
kind: Node
metadata: {name: al9qy-cp-x, uid: node}
spec: {providerID: kvm://al9qy/al9qy-cp-x, unschedulable: `+cordoned+`}
`)...)
		c.Workload = c.Management
		require.NoError(t, c.openNew(t.Context()))
		node, err := get(t.Context(), c.Workload.Client, coreKind("Node"), "", "al9qy-cp-x")
		require.NoError(t, err)
		require.NotNil(t, node)
		closed, _, err := unstructured.NestedBool(node.Object, "spec", "unschedulable")
		require.NoError(t, err)
		assert.False(t, closed)
	}
}

// TestNoPodsComeBackFromAMachineThatIsGone, and nothing is told of it: a way back that is gone on with finds it so.
func TestNoPodsComeBackFromAMachineThatIsGone(t *testing.T) {
	t.Parallel()
	c := with(t)
	c.Workload = c.Management
	c.Note = func(sentence string) { assert.Fail(t, sentence) }
	require.NoError(t, c.ReturnPods(t.Context()))
}

// TestAMachineThatGaveUpGetsNoVote, and nobody waits for its API server: its etcd is connected all the same, and would be half of a majority.
func TestAMachineThatGaveUpGetsNoVote(t *testing.T) {
	t.Parallel()
	c := with(t, firstNew(`conditions: [{type: `+infrav1.BootstrapExecSucceededCondition+`, status: "False", reason: BootstrapFailed, message: nobody promoted it, lastTransitionTime: "2026-01-01T00:00:00Z"}]`)...)
	c.Workload = c.Management
	for name, step := range map[string]func(context.Context) error{"join": c.Join, "promote": c.Promote, "server": c.AwaitServer} {
		require.EqualError(t, step(t.Context()), "booting KVMMachine/al9qy-cp-x: nobody promoted it", name)
	}
}

// TestWhoWaitsForAMachineHearsWhatIsKnownOfIt: a guest whose kernel hangs says nothing, and for a quarter of an hour nothing else does.
func TestWhoWaitsForAMachineHearsWhatIsKnownOfIt(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]string{
		"": "",
		`conditions: [{type: ` + infrav1.BootstrapExecSucceededCondition + `, status: "True", reason: BootstrapSucceeded, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]`:               "",
		`conditions: [{type: ` + infrav1.BootstrapExecSucceededCondition + `, status: Unknown, reason: GuestSilent, message: nothing has been heard, lastTransitionTime: "2026-01-01T00:00:00Z"}]`: " (KVMMachine/al9qy-cp-x: nothing has been heard)",
	} {
		so, err := with(t, firstNew(status)...).stillBoots(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, so)
	}
}

// TestAnAPIServerWithoutAWayToServicesIsWaitedFor: it would call no webhook. What else runs on every Node, and what does not want this one, holds nobody up.
func TestAnAPIServerWithoutAWayToServicesIsWaitedFor(t *testing.T) {
	t.Parallel()
	const ready, unready = `[{type: Ready, status: "True", lastTransitionTime: "2026-01-01T00:00:00Z"}]`,
		`[{type: Ready, status: "False", message: no network, lastTransitionTime: "2026-01-01T00:00:00Z"}]`
	set := func(namespace, name string, host bool, wanted, scheduled int) string {
		return fmt.Sprintf(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {namespace: %s, name: %s, uid: %[2]s}
spec: {selector: {matchLabels: {app: %[2]s}}, template: {metadata: {labels: {app: %[2]s}}, spec: {hostNetwork: %t, containers: [{name: a, image: a}]}}}
status: {desiredNumberScheduled: %d, currentNumberScheduled: %d, numberMisscheduled: 0, numberReady: 0}
`, namespace, name, host, wanted, scheduled)
	}
	pod := func(namespace, set, conditions string) string {
		return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {namespace: %s, name: %s-x, ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: %[2]s, uid: %[2]s, controller: true}]}
spec: {nodeName: al9qy-cp-x, containers: [{name: a, image: a}]}
status: {conditions: %s}
`, namespace, set, conditions)
	}
	for name, test := range map[string]struct {
		node    string
		objects []string
		want    string
	}{
		"no network":       {unready, nil, "waiting for Node al9qy-cp-x to be ready: no network: "},
		"no pod yet":       {ready, []string{set("kube-system", "kube-proxy", true, 2, 1)}, "waiting for DaemonSet kube-system/kube-proxy to be on every Node: "},
		"pod is not ready": {ready, []string{set("kube-system", "kube-proxy", true, 2, 2), pod("kube-system", "kube-proxy", unready)}, "waiting for pod kube-system/kube-proxy-x of DaemonSet kube-proxy on the new Node al9qy-cp-x to be ready: "},
		"all is well":      {ready, []string{set("kube-system", "kube-proxy", true, 2, 2), pod("kube-system", "kube-proxy", ready)}, ""},
		"workers alone":    {ready, []string{set("kube-system", "calico-typha", true, 1, 1)}, ""},
		"other daemons": {ready, []string{
			set("kube-system", "logs", false, 2, 1), pod("kube-system", "logs", unready), set("shop", "cache", true, 2, 1), pod("shop", "cache", unready),
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := with(t, append(append(firstNew(""), `
apiVersion: v1
kind: Node
metadata: {name: al9qy-cp-x}
spec: {providerID: kvm://al9qy/al9qy-cp-x}
status: {conditions: `+test.node+`}
`, `
apiVersion: v1
kind: Pod
metadata: {namespace: kube-system, name: kube-apiserver-al9qy-cp-x}
spec: {containers: [{name: a, image: a}]}
status: {conditions: `+ready+`}
`), test.objects...)...)
			c.Workload, c.Patience = c.Management, 100*time.Millisecond
			err := c.AwaitServer(t.Context())
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

// TestADaemonSetThatIsReadyNowhereHoldsUpNoWorker: it was broken before, and its owner may be asleep. One that is ready elsewhere has to be ready on the new Node, once.
func TestADaemonSetThatIsReadyNowhereHoldsUpNoWorker(t *testing.T) {
	t.Parallel()
	objects := func(wanted, ready int, on string) []string {
		return []string{fmt.Sprintf(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {namespace: shop, name: agent, uid: agent}
spec: {selector: {matchLabels: {app: agent}}, template: {metadata: {labels: {app: agent}}, spec: {containers: [{name: a, image: a}]}}}
status: {desiredNumberScheduled: %d, currentNumberScheduled: %d, numberMisscheduled: 0, numberReady: %d}
`, wanted, wanted, ready), fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: agent-new, ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: agent, uid: agent, controller: true}]}
spec: {nodeName: new, containers: [{name: a, image: a}]}
status: {conditions: [{type: Ready, status: "%s", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
`, on)}
	}
	for name, test := range map[string]struct {
		objects []string
		tells   bool
		waits   bool
	}{
		"ready":                    {objects(2, 2, "True"), false, false},
		"not yet":                  {objects(2, 1, "False"), false, true},
		"ready nowhere":            {objects(2, 0, "False"), true, false},
		"wanted here, and nowhere": {objects(1, 0, "False"), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := with(t, test.objects...)
			told := 0
			c.Workload, c.Patience, c.Tell = c.Management, 50*time.Millisecond, func(string, ...any) { told++ }
			err := c.awaitDaemons(t.Context(), []string{"new"})
			if test.waits {
				require.ErrorContains(t, err, "pod shop/agent-new of DaemonSet agent on the new Node new to be ready")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.tells, told > 0)
			_, asked := c.served.Load("new")
			assert.True(t, asked)
		})
	}
}

// TestServersThatReadOtherValuesDiffer without showing a value.
func TestServersThatReadOtherValuesDiffer(t *testing.T) {
	t.Parallel()
	secret := func(version, value string) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "payment", ResourceVersion: version}, Data: map[string][]byte{"token": []byte(value)},
		}
	}
	for name, test := range map[string]struct {
		before, after *corev1.Secret
		want          string
	}{
		"the same":           {secret("7", "planted"), secret("7", "planted"), ""},
		"still encrypted":    {secret("7", "planted"), secret("7", "k8s:enc:aescbc"), "the value of Secret shop/payment"},
		"nothing to compare": {secret("7", "planted"), secret("8", "planted"), "none of 1 Secrets could be compared"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var noted []string
			s := &servers{
				before: &server{clients: clientfake.NewClientset(test.before)}, after: &server{clients: clientfake.NewClientset(test.after)},
				note: func(format string, args ...any) { noted = append(noted, fmt.Sprintf(format, args...)) },
			}
			err := s.compareSecrets(t.Context())
			if test.want == "" {
				require.NoError(t, err)
				assert.Equal(t, []string{"both API servers read the same values in 1 Secrets"}, noted)
				return
			}
			require.ErrorIs(t, err, ErrDiffers)
			require.ErrorContains(t, err, test.want)
			assert.NotContains(t, err.Error(), "planted")
		})
	}
}

// TestATokenThatIsNotAcceptedDiffers: a server of another signing key says so.
func TestATokenThatIsNotAcceptedDiffers(t *testing.T) {
	t.Parallel()
	clients := clientfake.NewClientset()
	clients.PrependReactor("create", "tokenreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{Error: "unknown key"}}, nil
	})
	s := &server{clients: clients}
	err := s.accepts(t.Context(), "planted", "the new API server a token of the old one")
	require.ErrorIs(t, err, ErrDiffers)
	require.ErrorContains(t, err, "the new API server a token of the old one was not accepted: unknown key")
	assert.NotContains(t, err.Error(), "planted")
}

// TestARestorationNamesTheNewMachine, and a file's name does no harm in a shell.
func TestARestorationNamesTheNewMachine(t *testing.T) {
	t.Parallel()
	command, err := with(t, firstNew("addresses: [{type: InternalIP, address: 10.1.2.3}]")...).Restoration(t.Context(), "/backup/it's here.db")
	require.NoError(t, err)
	assert.Equal(t, `etcdutl snapshot restore '/backup/it'\''s here.db' --name al9qy-cp-x --initial-cluster al9qy-cp-x=https://10.1.2.3:2380 `+
		`--initial-advertise-peer-urls https://10.1.2.3:2380 --data-dir /var/lib/etcd-restored`, command)
	_, err = with(t, firstNew("")...).Restoration(t.Context(), "x")
	require.ErrorContains(t, err, "KVMMachine org-acme/al9qy-cp-x has no address")
	_, err = with(t).Restoration(t.Context(), "x")
	require.ErrorIs(t, err, ErrNotAlone)
}

// TestWhatAGoneClusterHadIsNotLookedFor: somebody may have deleted the Cluster and taken its finalizers off, and a rollback needs nothing of it.
func TestWhatAGoneClusterHadIsNotLookedFor(t *testing.T) {
	t.Parallel()
	require.NoError(t, with(t).Detach(t.Context()))
}
