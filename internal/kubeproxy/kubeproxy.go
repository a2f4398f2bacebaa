package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// ErrNoToken means that kube-proxy's next pods get no token: with a kubeconfig that names its file they do not start.
var ErrNoToken = errors.New("kube-proxy's pods get no token")

// Account is the ServiceAccount in kube-system as which kube-proxy's pods run; empty where no DaemonSet makes them. Whether they get its token, the pod's template says before the account does
// (kubernetes v1.22, plugin/pkg/admission/serviceaccount/admission.go, shouldAutomount).
func Account(ctx context.Context, reader client.Reader) (string, error) {
	set, key := &appsv1.DaemonSet{}, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: translate.ProxyDaemonSet}
	switch err := reader.Get(ctx, key, set); {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading DaemonSet %s: %w", key, err)
	}
	name, automount := set.Spec.Template.Spec.ServiceAccountName, set.Spec.Template.Spec.AutomountServiceAccountToken
	if name == "" || name == "default" {
		return "", fmt.Errorf("%w: DaemonSet %s names no ServiceAccount of its own (spec.template.spec.serviceAccountName), and what is allowed to another one all its pods may do", ErrNoToken, key)
	}
	if automount != nil {
		if !*automount {
			return "", fmt.Errorf("%w: spec.template.spec.automountServiceAccountToken of DaemonSet %s is false", ErrNoToken, key)
		}
		return name, nil
	}
	account := &corev1.ServiceAccount{}
	key.Name = name
	switch err := reader.Get(ctx, key, account); {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("%w: there is no ServiceAccount %s", ErrNoToken, key)
	case err != nil:
		return "", fmt.Errorf("reading ServiceAccount %s: %w", key, err)
	}
	if mount := account.AutomountServiceAccountToken; mount != nil && !*mount {
		return "", fmt.Errorf("%w: automountServiceAccountToken of ServiceAccount %s is false", ErrNoToken, key)
	}
	return name, nil
}

// Role is what Kubernetes lets a kube-proxy do, and Binding what kubeadm calls the binding to it of kube-proxy's ServiceAccount (kubernetes v1.22, cmd/kubeadm/app/phases/addons/proxy/proxy.go),
// whose addon phase is left out of a migration.
const (
	Role    = "system:node-proxier"
	Binding = "kubeadm:node-proxier"
)

// BindCommand is how a person lets a ServiceAccount of kube-system do what a kube-proxy does, by a name that nobody else has.
func BindCommand(account string) string {
	return fmt.Sprintf("kubectl create clusterrolebinding kube-proxy-token --clusterrole=%s --serviceaccount=%s:%s", Role, metav1.NamespaceSystem, account)
}

// Lacks asks the API server for what a kube-proxy asks it, and says what a ServiceAccount of kube-system may not do of that; empty for nothing.
func Lacks(ctx context.Context, c client.Client, account string) (string, error) {
	who := serviceaccount.MakeUsername(metav1.NamespaceSystem, account)
	groups := append(serviceaccount.MakeGroupNames(metav1.NamespaceSystem), user.AllAuthenticated)
	for _, wanted := range []authorizationv1.ResourceAttributes{
		{Verb: "list", Resource: "services"},
		{Verb: "watch", Resource: "services"},
		{Verb: "list", Group: "discovery.k8s.io", Resource: "endpointslices"},
		{Verb: "watch", Group: "discovery.k8s.io", Resource: "endpointslices"},
		{Verb: "get", Resource: "nodes"},
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: who, Groups: groups, ResourceAttributes: &wanted}}
		if err := c.Create(ctx, review); err != nil {
			return "", fmt.Errorf("asking what %s may do: %w", who, err)
		}
		if !review.Status.Allowed {
			why := strings.TrimSpace(review.Status.Reason + " " + review.Status.EvaluationError)
			if why != "" {
				why = " (" + why + ")"
			}
			return fmt.Sprintf("%s may not %s %s%s", who, wanted.Verb, wanted.Resource, why), nil
		}
	}
	return "", nil
}
