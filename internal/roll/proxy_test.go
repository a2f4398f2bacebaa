package roll

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kubeproxy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

const proxySet = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {namespace: kube-system, name: kube-proxy, uid: d}
spec: {template: {spec: {serviceAccountName: kube-proxy}}}
`

const proxyAccount = "{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: kube-system, name: kube-proxy, uid: s}}"

// proxied is a workload cluster with some objects, whose API server lets a user do what a kube-proxy does as soon as a binding says so, or from the beginning.
func proxied(t *testing.T, always bool, objects ...string) (*Roller, *[]string) {
	t.Helper()
	c := with(t, objects...)
	asked := &[]string{}
	answering := interceptor.NewClient(c.Management.Client, interceptor.Funcs{Create: func(ctx context.Context, under client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		review, ok := o.(*authorizationv1.SubjectAccessReview)
		if !ok {
			return under.Create(ctx, o, opts...)
		}
		*asked = append(*asked, review.Spec.User)
		binding := &rbacv1.ClusterRoleBinding{}
		if err := under.Get(ctx, client.ObjectKey{Name: kubeproxy.Binding}, binding); client.IgnoreNotFound(err) != nil {
			return err
		}
		review.Status.Allowed = always || binding.RoleRef.Name == kubeproxy.Role && review.Spec.User == "system:serviceaccount:"+binding.Subjects[0].Namespace+":"+binding.Subjects[0].Name
		return nil
	}})
	c.Workload = adopt.Side{Client: answering, Writer: kube.NewWriter(answering, kube.WriterOptions{})}
	return c, asked
}

func (c *Roller) binding(t *testing.T) *rbacv1.ClusterRoleBinding {
	t.Helper()
	found := &rbacv1.ClusterRoleBinding{}
	err := c.Workload.Client.Get(t.Context(), client.ObjectKey{Name: kubeproxy.Binding}, found)
	if client.IgnoreNotFound(err) == nil && err != nil {
		return nil
	}
	require.NoError(t, err)
	return found
}

func TestTheServiceAccountOfKubeProxyMayDoWhatItDoes(t *testing.T) {
	t.Parallel()
	c, asked := proxied(t, false, proxySet, proxyAccount)
	require.ErrorIs(t, c.VerifyProxyBound(t.Context()), kube.ErrNotInTime)
	for range 2 {
		require.NoError(t, c.BindProxy(t.Context()))
		require.NoError(t, c.VerifyProxyBound(t.Context()))
	}
	assert.Contains(t, *asked, "system:serviceaccount:kube-system:kube-proxy")
	require.NotNil(t, c.binding(t))
	assert.Equal(t, "al9qy", c.binding(t).Labels[translate.LabelCluster])
	made := c.binding(t)
	made.UID = "made" // as a real server does
	require.NoError(t, c.Workload.Client.Update(t.Context(), made))
	for range 2 {
		require.NoError(t, c.UnbindProxy(t.Context()))
	}
	assert.Nil(t, c.binding(t))
}

func TestWhatAKubeProxyMayAlreadyIsLeftAlone(t *testing.T) {
	t.Parallel()
	const foreign = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:node-proxier", uid: b}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:node-proxier}
subjects: [{kind: ServiceAccount, namespace: kube-system, name: kube-proxy}]
`
	for name, test := range map[string]struct {
		always  bool
		objects []string
		there   bool
	}{
		"by another way":  {true, []string{proxySet, proxyAccount}, false},
		"by this binding": {false, []string{proxySet, proxyAccount, foreign}, true},
		"none is there":   {false, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := proxied(t, test.always, test.objects...)
			require.NoError(t, c.BindProxy(t.Context()))
			require.NoError(t, c.VerifyProxyBound(t.Context()))
			assert.Equal(t, test.there, c.binding(t) != nil)
			require.NoError(t, c.UnbindProxy(t.Context()))
			assert.Equal(t, test.there, c.binding(t) != nil, "it is somebody else's")
		})
	}
}

func TestABindingOfSomebodyElseIsNotTakenOver(t *testing.T) {
	t.Parallel()
	for name, subjects := range map[string]string{"others": "[{kind: ServiceAccount, namespace: shop, name: mesh}]", "none": "[]"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := proxied(t, false, proxySet, proxyAccount, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:node-proxier", uid: b}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: shop}
subjects: `+subjects)
			before := c.binding(t)
			err := c.BindProxy(t.Context())
			require.ErrorIs(t, err, errBound)
			require.ErrorContains(t, err, "ClusterRoleBinding/kubeadm:node-proxier is somebody else's")
			require.ErrorContains(t, err, "(kubectl create clusterrolebinding kube-proxy-token --clusterrole=system:node-proxier --serviceaccount=kube-system:kube-proxy), then run this again")
			require.NoError(t, c.UnbindProxy(t.Context()))
			assert.Equal(t, before, c.binding(t))
		})
	}
}

// TestNoMachineIsMadeWhoseKubeProxyWouldNotStart looks at what makes pods, whatever those that run have.
func TestNoMachineIsMadeWhoseKubeProxyWouldNotStart(t *testing.T) {
	t.Parallel()
	set := func(spec string) string {
		return "{apiVersion: apps/v1, kind: DaemonSet, metadata: {namespace: kube-system, name: kube-proxy, uid: d}, spec: {template: {spec: {" + spec + "}}}}"
	}
	const silent = "{apiVersion: v1, kind: ServiceAccount, automountServiceAccountToken: false, metadata: {namespace: kube-system, name: kube-proxy, uid: s}}"
	for name, test := range map[string]struct {
		objects []string
		says    string
	}{
		"the template says no":                 {[]string{set("serviceAccountName: kube-proxy, automountServiceAccountToken: false"), proxyAccount}, "of DaemonSet kube-system/kube-proxy is false"},
		"the account says no":                  {[]string{proxySet, silent}, "of ServiceAccount kube-system/kube-proxy is false"},
		"the template has the last word":       {[]string{set("serviceAccountName: kube-proxy, automountServiceAccountToken: true"), silent}, ""},
		"there is no account":                  {[]string{proxySet}, "there is no ServiceAccount kube-system/kube-proxy"},
		"the account is that of everybody":     {[]string{set("serviceAccountName: default"), proxyAccount}, "names no ServiceAccount of its own"},
		"the account is not named, so default": {[]string{set("hostNetwork: true"), proxyAccount}, "names no ServiceAccount of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := proxied(t, false, test.objects...)
			err := c.BindProxy(t.Context())
			if test.says == "" {
				require.NoError(t, err)
				assert.NotNil(t, c.binding(t))
				return
			}
			require.ErrorIs(t, err, kubeproxy.ErrNoToken)
			require.ErrorContains(t, err, test.says)
			require.ErrorContains(t, err, "kubectl -n kube-system edit daemonset kube-proxy; kubectl -n kube-system edit serviceaccount NAME")
			assert.Nil(t, c.binding(t))
		})
	}
}
