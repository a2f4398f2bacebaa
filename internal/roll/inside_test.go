package roll

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
)

// TestWhatWasThereBeforeKubeadmStays, although kubeadm would call it the same: only what came with the new machine goes with it.
func TestWhatWasThereBeforeKubeadmStays(t *testing.T) {
	t.Parallel()
	was := []string{`
apiVersion: v1
kind: ConfigMap
metadata: {namespace: kube-public, name: cluster-info, uid: a}
`, `
apiVersion: v1
kind: Secret
metadata: {namespace: kube-system, name: bootstrap-token-theirs, uid: b}
`}
	came := []string{`
apiVersion: v1
kind: ConfigMap
metadata: {namespace: kube-system, name: kubeadm-config, uid: c}
`, `
apiVersion: v1
kind: Secret
metadata: {namespace: kube-system, name: bootstrap-token-ours, uid: d}
`, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "kubeadm:get-nodes", uid: e}
`, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:get-nodes", uid: f}
`, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:node-proxier", uid: g, labels: {migration.giantswarm.io/cluster: al9qy}}
`}
	there := func(c *Roller) []string {
		left, err := c.leavings(t.Context())
		require.NoError(t, err)
		names := make([]string, 0, len(left))
		for _, o := range left {
			names = append(names, o.GetName())
		}
		return names
	}
	c, inside := with(t), with(t, was...)
	c.Workload = inside.Management
	require.NoError(t, c.SaveAPIServices(t.Context()))
	grown := with(t, append(was, came...)...)
	c.Workload = grown.Management
	require.NoError(t, c.SaveAPIServices(t.Context()), "once more, and what was kept stays")
	var noted []string
	c.Note = func(sentence string) { noted = append(noted, sentence) }
	require.NoError(t, c.Clean(t.Context()))
	assert.Equal(t, []string{"cluster-info", "bootstrap-token-theirs"}, there(c))
	assert.NotNil(t, c.binding(t), "a step of its own has made it, and takes it back")
	assert.Equal(t, []string{
		"ConfigMap/kube-public/cluster-info stays: it was there before the new machine, which may have changed it",
		"Secret/kube-system/bootstrap-token-theirs stays: it was there before the new machine, which may have changed it",
	}, noted)
}

// TestAPIServicesThatTheNewServerDeletesAreRestored as they were, once, and nothing else is touched.
func TestAPIServicesThatTheNewServerDeletesAreRestored(t *testing.T) {
	t.Parallel()
	removed, stays := `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.extensions, uid: a, labels: {kube-aggregator.kubernetes.io/automanaged: onstart}, annotations: {note: kept}}
spec: {group: extensions, version: v1beta1, groupPriorityMinimum: 17150, versionPriority: 1}
`, `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.apps, uid: b, labels: {kube-aggregator.kubernetes.io/automanaged: onstart}}
spec: {group: apps, version: v1, groupPriorityMinimum: 17800, versionPriority: 15}
`
	custom := `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.shop.example.test, uid: c, labels: {kube-aggregator.kubernetes.io/automanaged: "true"}}
spec: {group: shop.example.test, version: v1, groupPriorityMinimum: 1000, versionPriority: 100}
`
	c := with(t)
	require.NoError(t, c.RestoreAPIServices(t.Context()), "nothing was saved")
	require.Error(t, c.VerifyAPIServicesSaved(t.Context()))
	before := with(t, removed, stays, custom)
	c.Workload = before.Management
	require.NoError(t, c.SaveAPIServices(t.Context()))
	require.NoError(t, c.VerifyAPIServicesSaved(t.Context()))

	after := with(t, stays)
	c.Workload = after.Management
	require.NoError(t, c.SaveAPIServices(t.Context()), "a run that goes on keeps the copy of before")
	var noted []string
	c.Note = func(sentence string) { noted = append(noted, sentence) }
	require.NoError(t, c.RestoreAPIServices(t.Context()))
	found, err := adopt.List(t.Context(), c.Workload.Client, apiServiceKind(), "")
	require.NoError(t, err)
	require.Len(t, found, 2, "those of CustomResourceDefinitions come and go with them")
	want, err := adopt.List(t.Context(), before.Management.Client, apiServiceKind(), "")
	require.NoError(t, err)
	const name = "v1beta1.extensions"
	require.NotNil(t, found[name])
	assert.Equal(t, want[name].Object["spec"], found[name].Object["spec"])
	assert.Equal(t, want[name].GetLabels(), found[name].GetLabels(), "the next newer server has to know that it may delete it")
	assert.Equal(t, want[name].GetAnnotations(), found[name].GetAnnotations())
	assert.Equal(t, "b", string(found["v1.apps"].GetUID()), "what is there is left alone")
	assert.Equal(t, []string{"APIService/v1beta1.extensions is there again"}, noted)

	require.NoError(t, c.Workload.Client.Delete(t.Context(), found[name]))
	require.NoError(t, c.RestoreAPIServices(t.Context()), "the copy is forgotten with the first time")
	found, err = adopt.List(t.Context(), c.Workload.Client, apiServiceKind(), "")
	require.NoError(t, err)
	assert.Len(t, found, 1)
}

// TestStaticPodsAreAdmittedByAPolicy that the cluster has, or by one that is made and goes again; somebody else's objects of the same name stay.
func TestStaticPodsAreAdmittedByAPolicy(t *testing.T) {
	t.Parallel()
	const (
		theirs     = "{apiVersion: policy/v1beta1, kind: PodSecurityPolicy, metadata: {name: z-privileged, uid: a}, spec: {privileged: true, hostNetwork: true, volumes: ['*']}}"
		restricted = "{apiVersion: policy/v1beta1, kind: PodSecurityPolicy, metadata: {name: a-restricted, uid: b}, spec: {hostNetwork: true, volumes: ['*']}}"
	)
	for name, test := range map[string]struct {
		have []string
		uses string
		made int
	}{
		"the cluster's own":    {[]string{restricted, theirs}, "z-privileged", 2},
		"none is privileged":   {[]string{restricted}, mirrorPods, 3},
		"there is none at all": {nil, mirrorPods, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := with(t, test.have...)
			c.Workload = c.Management
			made := func() (all []*unstructured.Unstructured) {
				for _, kind := range []schema.GroupVersionKind{policyKind(), rbacv1.SchemeGroupVersion.WithKind("Role"), rbacv1.SchemeGroupVersion.WithKind("RoleBinding")} {
					found, err := adopt.List(t.Context(), c.Workload.Client, kind, "")
					require.NoError(t, err)
					for _, o := range found {
						if o.GetName() == mirrorPods {
							all = append(all, o)
						}
					}
				}
				return all
			}
			for range 2 { // Once more makes no others.
				require.NoError(t, c.Admit(t.Context()))
				require.Len(t, made(), test.made)
			}
			for _, o := range made() { // A real server gives every object a UID.
				o.SetUID("made")
				require.NoError(t, c.Workload.Client.Update(t.Context(), o))
			}
			role := &rbacv1.Role{}
			require.NoError(t, c.Workload.Client.Get(t.Context(), client.ObjectKey{Namespace: systemNamespace, Name: mirrorPods}, role))
			assert.Equal(t, []rbacv1.PolicyRule{{APIGroups: []string{"policy"}, Resources: []string{"podsecuritypolicies"}, ResourceNames: []string{test.uses}, Verbs: []string{"use"}}}, role.Rules)
			binding := &rbacv1.RoleBinding{}
			require.NoError(t, c.Workload.Client.Get(t.Context(), client.ObjectKeyFromObject(role), binding))
			assert.Equal(t, "Role", binding.RoleRef.Kind, "in kube-system alone")
			assert.Equal(t, mirrorPods, binding.RoleRef.Name)
			require.Len(t, binding.Subjects, 1)
			assert.Equal(t, "system:nodes", binding.Subjects[0].Name)
			if test.made == 3 {
				spec, _, err := unstructured.NestedMap(made()[0].Object, "spec")
				require.NoError(t, err)
				assert.Equal(t, []any{true, true, []any{"*"}}, []any{spec["privileged"], spec["hostNetwork"], spec["volumes"]}, "what a control plane's static pods ask for")
			}

			role.Labels = nil // Somebody took it over.
			require.NoError(t, c.Workload.Client.Update(t.Context(), role))
			for range 2 {
				require.NoError(t, c.Unadmit(t.Context()))
				left := made()
				require.Len(t, left, 1)
				assert.Equal(t, "Role", left[0].GetKind())
			}
			for _, text := range test.have {
				policy := &unstructured.Unstructured{}
				require.NoError(t, yaml.Unmarshal([]byte(text), &policy.Object))
				require.NoError(t, c.Workload.Client.Get(t.Context(), client.ObjectKeyFromObject(policy), policy), "the cluster's own stay")
			}
		})
	}
}
