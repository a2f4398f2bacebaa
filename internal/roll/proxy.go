package roll

import (
	"cmp"
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// What Kubernetes lets a kube-proxy do, and what kubeadm calls the binding to it of kube-proxy's ServiceAccount (kubernetes v1.22, cmd/kubeadm/app/phases/addons/proxy/proxy.go),
// whose addon phase is left out here.
const (
	proxyRole    = "system:node-proxier"
	proxyBinding = "kubeadm:node-proxier"
)

// proxyBindingObject lets a ServiceAccount of kube-system do what a kube-proxy does.
func (c *Roller) proxyBindingObject(account string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"roleRef":  map[string]any{"apiGroup": rbacv1.GroupName, "kind": "ClusterRole", "name": proxyRole},
		"subjects": []any{map[string]any{"kind": rbacv1.ServiceAccountKind, "namespace": systemNamespace, "name": account}},
	}}
	o.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"))
	o.SetName(proxyBinding)
	o.SetLabels(map[string]string{translate.LabelCluster: c.Picture.ID})
	return o
}

// proxyAccount is the ServiceAccount as which kube-proxy's pods run; empty where no DaemonSet makes them.
func (c *Roller) proxyAccount(ctx context.Context) (string, error) {
	set := &appsv1.DaemonSet{}
	key := client.ObjectKey{Namespace: systemNamespace, Name: translate.ProxyDaemonSet}
	switch err := c.Workload.Client.Get(ctx, key, set); {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading DaemonSet %s: %w", key, err)
	}
	return cmp.Or(set.Spec.Template.Spec.ServiceAccountName, "default"), nil
}

// BindProxy lets kube-proxy's ServiceAccount do what a kube-proxy does, unless it may already. The legacy platform lets the workers' certificate do that, and nobody renews it;
// on new Nodes kube-proxy shows its pod's token as well, which is all that counts once the certificate has ended (decision 0005).
func (c *Roller) BindProxy(ctx context.Context) error {
	account, err := c.proxyAccount(ctx)
	if err != nil || account == "" {
		return err
	}
	missing, err := c.proxyLacks(ctx, account)
	if err != nil || missing == "" {
		return err
	}
	return c.Workload.Writer.Ensure(ctx, c.proxyBindingObject(account))
}

// VerifyProxyBound waits until the ServiceAccount may: an API server hears of a binding a moment after it is there.
func (c *Roller) VerifyProxyBound(ctx context.Context) error {
	account, err := c.proxyAccount(ctx)
	if err != nil || account == "" {
		return err
	}
	return c.poll(ctx, func(ctx context.Context) (string, error) { return c.proxyLacks(ctx, account) })
}

// UnbindProxy takes that back, where it was this migration that did it.
func (c *Roller) UnbindProxy(ctx context.Context) error {
	wanted := c.proxyBindingObject("")
	live, err := get(ctx, c.Workload.Client, wanted.GroupVersionKind(), "", wanted.GetName())
	if err != nil || live == nil || live.GetLabels()[translate.LabelCluster] != c.Picture.ID {
		return err
	}
	return c.Workload.Writer.Delete(ctx, kube.TargetOf(live), metav1.DeletePropagationBackground)
}

// proxyLacks asks the API server for what a kube-proxy asks it first, and says what the ServiceAccount may not do.
func (c *Roller) proxyLacks(ctx context.Context, account string) (string, error) {
	user := serviceaccount.MakeUsername(systemNamespace, account)
	groups := append(serviceaccount.MakeGroupNames(systemNamespace), "system:authenticated")
	for _, wanted := range []authorizationv1.ResourceAttributes{
		{Verb: "watch", Resource: "services"},
		{Verb: "watch", Group: "discovery.k8s.io", Resource: "endpointslices"},
		{Verb: "get", Resource: "nodes"},
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups, ResourceAttributes: &wanted}}
		if err := c.Workload.Client.Create(ctx, review); err != nil {
			return "", fmt.Errorf("asking what %s may do: %w", user, err)
		}
		if !review.Status.Allowed {
			return fmt.Sprintf("%s to be allowed to %s %s", user, wanted.Verb, wanted.Resource), nil
		}
	}
	return "", nil
}
