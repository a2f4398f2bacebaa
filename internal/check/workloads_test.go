package check

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

const recordedShop = `
- apiVersion: v1
  kind: Pod
  metadata:
    name: echo-1
    namespace: shop
    labels: {app: echo}
    ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: echo, uid: "1", controller: true}]
  spec: {nodeName: worker-1, volumes: [{name: data, iscsi: {iqn: iqn.array, lun: 2, targetPortal: "10.0.0.9:3260"}}]}
  status: {phase: Running, conditions: [{type: Ready, status: "True"}]}
- apiVersion: policy/v1beta1
  kind: PodDisruptionBudget
  metadata: {name: echo, namespace: shop}
  spec: {selector: {matchLabels: {app: echo}}}
  status: {currentHealthy: 1, desiredHealthy: 1, expectedPods: 1}
- apiVersion: v1
  kind: PersistentVolume
  metadata: {name: db}
  spec: {iscsi: {iqn: iqn.array, lun: 1, targetPortal: "10.0.0.9:3260"}}
- apiVersion: v1
  kind: PersistentVolume
  metadata: {name: local}
  spec: {hostPath: {path: /srv}, claimRef: {namespace: shop, name: data}}
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: other, namespace: shop}
`

func recorded(t *testing.T, text string) *legacy.Inside {
	t.Helper()
	var objects []map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &objects))
	inside := &legacy.Inside{}
	for _, o := range objects {
		u := unstructured.Unstructured{Object: o}
		inside.Objects = append(inside.Objects, legacy.Doc[unstructured.Unstructured]{
			Ref: legacy.Ref{APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName()}, Object: u,
		})
	}
	return inside
}

func TestWorkloadsOfASnapshotAndOfAServerAreTheSame(t *testing.T) {
	t.Parallel()
	inside := recorded(t, recordedShop)
	fromSnapshot, err := RecordedWorkloads(inside, testNow)
	require.NoError(t, err)
	require.Len(t, fromSnapshot.Pods, 1)
	assert.Equal(t, []string{"PersistentVolume db: iqn.array at 10.0.0.9:3260", "Pod shop/echo-1: iqn.array at 10.0.0.9:3260"}, fromSnapshot.ISCSI)
	assert.Equal(t, 2, fromSnapshot.Volumes)
	assert.Equal(t, []string{"PersistentVolume local (claim shop/data): hostPath /srv, on the node where its pod runs"}, fromSnapshot.OnNodes)
	assert.Equal(t, drain.Evict, fromSnapshot.Pods[0].Action)
	assert.Equal(t, []string{"echo"}, fromSnapshot.Pods[0].Held.Budgets)

	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, policyv1.AddToScheme(scheme))
	objects := make([]client.Object, 0, 4)
	for _, o := range inside.Objects[:4] {
		copied := o.Object.DeepCopy()
		if copied.GetKind() == "PodDisruptionBudget" {
			copied.SetAPIVersion("policy/v1")
		}
		objects = append(objects, copied)
	}
	server := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	fromServer, err := AskWorkloads(t.Context(), server, testNow)
	require.NoError(t, err)
	assert.Equal(t, fromSnapshot, fromServer)

	broken := interceptor.NewClient(server, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if _, ok := list.(*policyv1.PodDisruptionBudgetList); ok {
			return errors.New("forbidden")
		}
		return c.List(ctx, list, opts...)
	}})
	_, err = AskWorkloads(t.Context(), broken, testNow)
	require.EqualError(t, err, "listing the workload cluster's disruption budgets: forbidden")
}

func TestWorkloadsThatAreNotRecorded(t *testing.T) {
	t.Parallel()
	for name, inside := range map[string]*legacy.Inside{"nothing": nil, "no pods": recorded(t, "[{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}]")} {
		got, err := RecordedWorkloads(inside, testNow)
		require.NoError(t, err, name)
		assert.Nil(t, got, name)
	}
	_, err := RecordedWorkloads(recorded(t, "[{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}, spec: {containers: none}}]"), testNow)
	require.ErrorContains(t, err, "reading Pod")
}

func TestVolumesOnANode(t *testing.T) {
	t.Parallel()
	tied := func(terms ...[]corev1.NodeSelectorRequirement) *corev1.VolumeNodeAffinity {
		a := &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{}}
		for _, term := range terms {
			a.Required.NodeSelectorTerms = append(a.Required.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: term})
		}
		return a
	}
	in := func(key string, values ...string) []corev1.NodeSelectorRequirement {
		return []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}}
	}
	local := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/ssd"}}
	driver := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disks.example"}}
	for name, c := range map[string]struct {
		source   corev1.PersistentVolumeSource
		affinity *corev1.VolumeNodeAffinity
		want     string
	}{
		"local":                   {local, tied(in(corev1.LabelHostname, "worker-2")), "local /mnt/ssd, on node worker-2"},
		"local without affinity":  {local, nil, "local /mnt/ssd, on the node where its pod runs"},
		"a driver's own key":      {driver, tied(in("topology.disks.example/node", "worker-1")), "of driver disks.example, on node worker-1"},
		"two nodes":               {driver, tied(in(corev1.LabelHostname, "worker-2"), in(corev1.LabelHostname, "worker-1")), "of driver disks.example, on node worker-1 or worker-2"},
		"another kind of storage": {corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}, tied(in(corev1.LabelHostname, "worker-1")), "bound by its node affinity, on node worker-1"},
		"a zone":                  {driver, tied(in(corev1.LabelTopologyZone, "a")), ""},
		"a node or a zone":        {driver, tied(in(corev1.LabelHostname, "worker-1"), in(corev1.LabelTopologyZone, "a")), ""},
		"every node but one":      {driver, tied([]corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"worker-1"}}}), ""},
		"everywhere":              {driver, nil, ""},
	} {
		pv := &corev1.PersistentVolume{}
		pv.Name, pv.Spec.PersistentVolumeSource, pv.Spec.NodeAffinity = "db", c.source, c.affinity
		nodes := map[string]bool{"worker-1": true}
		assert.Empty(t, onNode(pv, nodes), "%s, which nobody claims", name)
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data"}
		want := c.want
		if want != "" {
			want = "PersistentVolume db (claim shop/data): " + want
		}
		assert.Equal(t, want, onNode(pv, nodes), name)
	}
}

// TestWhatNeedsNoDecision: a cluster without workers wants no room for one, and one whose volumes use no iSCSI asks nobody.
func TestWhatNeedsNoDecision(t *testing.T) {
	t.Parallel()
	f := healthyOf(t, 1)
	f.Cluster.Nodes = f.Cluster.Nodes[:1]
	assert.Equal(t, Pass, outcomeOf(t, f, "CHK-VM-011").Outcome)
	f = healthyOf(t, 1)
	f.Workloads.Volumes = 3
	assert.Equal(t, Pass, outcomeOf(t, f, "CHK-VM-015").Outcome)
}

// TestTheOnlyWorkerGoesFirst before its replacement comes: a budget that its pods' own absence would break is told before the night.
func TestTheOnlyWorkerGoesFirst(t *testing.T) {
	t.Parallel()
	tolerated := corev1.Toleration{Key: "node-role.kubernetes.io/master", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	for name, test := range map[string]struct {
		change func(f *Facts, pods []corev1.Pod, budget *policyv1.PodDisruptionBudget)
		want   Outcome
	}{
		"one of its two pods has to stay": {nil, Warn},
		"its replacement comes first": {func(f *Facts, _ []corev1.Pod, _ *policyv1.PodDisruptionBudget) {
			f.Cluster.Nodes[1].Sizing.HostVolumes = nil
		}, Pass},
		"a master takes one of them": {func(_ *Facts, pods []corev1.Pod, _ *policyv1.PodDisruptionBudget) {
			pods[0].Spec.Tolerations = append(pods[0].Spec.Tolerations, tolerated)
		}, Pass},
		"one is elsewhere": {func(_ *Facts, pods []corev1.Pod, _ *policyv1.PodDisruptionBudget) {
			pods[0].Spec.NodeName = "elsewhere"
		}, Pass},
		"the budget lets all of them go": {func(_ *Facts, _ []corev1.Pod, b *policyv1.PodDisruptionBudget) { b.Status.DesiredHealthy = 0 }, Pass},
		"nobody has computed the budget": {func(_ *Facts, _ []corev1.Pod, b *policyv1.PodDisruptionBudget) {
			b.Status.CurrentHealthy, b.Status.DesiredHealthy = 0, 0
		}, Pass},
		"masters are tolerated, and not chosen": {func(_ *Facts, pods []corev1.Pod, _ *policyv1.PodDisruptionBudget) {
			for i := range pods {
				pods[i].Spec.Tolerations, pods[i].Spec.NodeSelector = append(pods[i].Spec.Tolerations, tolerated), map[string]string{"node.kubernetes.io/worker": ""}
			}
		}, Warn},
		"the budget is of another's pods": {func(_ *Facts, _ []corev1.Pod, b *policyv1.PodDisruptionBudget) { b.Namespace = "other" }, Pass},
		"its replacement keeps its iSCSI name": {func(f *Facts, _ []corev1.Pod, _ *policyv1.PodDisruptionBudget) {
			worker := f.Cluster.Workers()[0]
			worker.Sizing.HostVolumes = nil
			f.KeptNames = map[string]string{worker.ID: "iqn.a"}
		}, Warn},
		"a drain leaves them alone": {func(_ *Facts, pods []corev1.Pod, _ *policyv1.PodDisruptionBudget) {
			for i := range pods {
				pods[i].Labels["cluster.x-k8s.io/drain"] = "skip"
			}
		}, Pass},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := healthyOf(t, 1)
			addHostVolume(f.Cluster, 0, "host")
			worker := f.Cluster.Nodes[1].Pod.Object.Name
			pods := make([]corev1.Pod, 2)
			for i := range pods {
				pods[i] = daemonPod(worker, true)
				pods[i].Namespace, pods[i].Name, pods[i].Labels = "shop", fmt.Sprint("echo-", i), map[string]string{"app": "echo"}
				pods[i].OwnerReferences[0].Kind = "ReplicaSet"
			}
			budget := policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo"},
				Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "echo"}}},
				Status:     policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 2, DesiredHealthy: 1, ExpectedPods: 2, DisruptionsAllowed: 1},
			}
			if test.change != nil {
				test.change(f, pods, &budget)
			}
			f.Workloads = makeWorkloads(pods, []policyv1.PodDisruptionBudget{budget}, nil, testNow)
			got := outcomeOf(t, f, "CHK-NODE-006")
			assert.Equal(t, test.want, got.Outcome, got.Items)
			if test.want == Warn {
				assert.Equal(t, []string{"PodDisruptionBudget shop/echo: on " + worker + ", the only worker, whose replacement comes when it is gone, 2 of 2 healthy pods could go to no master, and it wants 1 of them healthy; " +
					"kubectl -n shop describe pdb echo"}, got.Items)
			}
		})
	}
}
