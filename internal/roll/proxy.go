package roll

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kubeproxy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// errBound means that somebody else's object has the name of one that is needed.
var errBound = errors.New("the name is taken")

// proxyBindingObject lets a ServiceAccount of kube-system do what a kube-proxy does.
func (c *Roller) proxyBindingObject(account string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"roleRef":  map[string]any{"apiGroup": rbacv1.GroupName, "kind": "ClusterRole", "name": kubeproxy.Role},
		"subjects": []any{map[string]any{"kind": rbacv1.ServiceAccountKind, "namespace": systemNamespace, "name": account}},
	}}
	o.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"))
	o.SetName(kubeproxy.Binding)
	o.SetLabels(map[string]string{translate.LabelCluster: c.Picture.ID})
	return o
}

// BindProxy lets kube-proxy's ServiceAccount do what a kube-proxy does, unless it may already. The legacy platform lets the workers' certificate do that, and nobody renews it;
// on new Nodes kube-proxy shows its pod's token as well, which is all that counts once the certificate has ended (decision 0005).
func (c *Roller) BindProxy(ctx context.Context) error {
	account, err := kubeproxy.Account(ctx, c.Workload.Client)
	if errors.Is(err, kubeproxy.ErrNoToken) {
		return fmt.Errorf("binding kube-proxy's ServiceAccount: %[1]w; change that (kubectl -n %[2]s edit daemonset %[3]s; kubectl -n %[2]s edit serviceaccount NAME, or create it), then run this again", err, systemNamespace, translate.ProxyDaemonSet)
	}
	if err != nil || account == "" {
		return err
	}
	missing, err := kubeproxy.Lacks(ctx, c.Workload.Client, account)
	if err != nil || missing == "" {
		return err
	}
	wanted := c.proxyBindingObject(account)
	live, err := get(ctx, c.Workload.Client, wanted.GroupVersionKind(), "", wanted.GetName())
	if err != nil {
		return err
	}
	if live != nil && !c.made(live) {
		return fmt.Errorf("binding kube-proxy's ServiceAccount: %w: %s is somebody else's, and %s; bind it by another name (%s), then run this again", errBound, kube.TargetOf(live), missing, kubeproxy.BindCommand(account))
	}
	return c.Workload.Writer.Ensure(ctx, wanted)
}

// made tells that this migration has made an object in the workload cluster.
func (c *Roller) made(o *unstructured.Unstructured) bool {
	return o.GetLabels()[translate.LabelCluster] == c.Picture.ID
}

// VerifyProxyBound waits until the ServiceAccount may: an API server hears of a binding a moment after it is there.
func (c *Roller) VerifyProxyBound(ctx context.Context) error {
	account, err := kubeproxy.Account(ctx, c.Workload.Client)
	if err != nil || account == "" {
		return err
	}
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		missing, err := kubeproxy.Lacks(ctx, c.Workload.Client, account)
		if missing != "" {
			missing = "ClusterRole " + kubeproxy.Role + " to be known to be bound: " + missing
		}
		return missing, err
	})
}

// UnbindProxy takes that back, where it was this migration that did it.
func (c *Roller) UnbindProxy(ctx context.Context) error {
	wanted := c.proxyBindingObject("")
	live, err := get(ctx, c.Workload.Client, wanted.GroupVersionKind(), "", wanted.GetName())
	if err != nil || live == nil || !c.made(live) {
		return err
	}
	return c.Workload.Writer.Delete(ctx, kube.TargetOf(live), metav1.DeletePropagationBackground)
}
