package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubectl/pkg/drain"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
)

// Cordon keeps new pods off the Node and marks it, so that Uncordon knows whose cordon it is. A Node that somebody else cordoned
// is not marked. It writes only when something has to change.
func Cordon(ctx context.Context, c client.Client, node *corev1.Node, owner client.FieldOwner) error {
	if node.Spec.Unschedulable {
		return nil
	}
	before := node.DeepCopy()
	node.Spec.Unschedulable = true
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, infrav1.CordonedAnnotation, "true")
	if err := c.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), owner); err != nil {
		return fmt.Errorf("cordoning Node %s: %w", node.Name, err)
	}
	return nil
}

// Uncordon takes back Cordon and says whether there was something to take back.
func Uncordon(ctx context.Context, c client.Client, node *corev1.Node, owner client.FieldOwner) (bool, error) {
	if _, ours := node.Annotations[infrav1.CordonedAnnotation]; !ours {
		return false, nil
	}
	before := node.DeepCopy()
	node.Spec.Unschedulable = false
	delete(node.Annotations, infrav1.CordonedAnnotation)
	if err := c.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), owner); err != nil {
		return false, fmt.Errorf("uncordoning Node %s: %w", node.Name, err)
	}
	return true, nil
}

// Drained is how far the drain of a Node is.
type Drained struct {
	// Leaving are pods that are ending.
	Leaving []string
	// Blocked says for each pod that could not be evicted why.
	Blocked []string
}

// Done says whether nothing is left to wait for.
func (d *Drained) Done() bool { return len(d.Leaving) == 0 && len(d.Blocked) == 0 }

// String is for people.
func (d *Drained) String() string {
	const shown = 5
	var parts []string
	for _, x := range []struct {
		what string
		pods []string
	}{{"blocked", d.Blocked}, {"ending", d.Leaving}} {
		if len(x.pods) == 0 {
			continue
		}
		text := strings.Join(x.pods[:min(shown, len(x.pods))], ", ")
		if more := len(x.pods) - shown; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		parts = append(parts, fmt.Sprintf("%d %s: %s", len(x.pods), x.what, text))
	}
	if len(parts) == 0 {
		return "no pods are left to evict"
	}
	return strings.Join(parts, "; ")
}

// Drain makes one pass over the pods that kubectl drain would evict from the Node, and asks for the eviction of each that is not
// ending yet. It does not wait.
func Drain(ctx context.Context, clientset kubernetes.Interface, nodeName string) (*Drained, error) {
	helper := &drain.Helper{
		Ctx: ctx, Client: clientset, Out: io.Discard, ErrOut: io.Discard,
		// The virtual machine goes in any case: what has no controller or keeps data in its file system loses by a power cut, too.
		Force: true, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true, GracePeriodSeconds: -1,
	}
	list, failures := helper.GetPodsForDeletion(nodeName)
	if len(failures) > 0 {
		return nil, fmt.Errorf("listing the pods on Node %s: %w", nodeName, errors.Join(failures...))
	}
	drained := &Drained{}
	var problems []error
	for _, pod := range list.Pods() {
		name := pod.Namespace + "/" + pod.Name
		if pod.DeletionTimestamp != nil {
			drained.Leaving = append(drained.Leaving, name)
			continue
		}
		switch err := evict(ctx, clientset, &pod); {
		case err == nil:
			drained.Leaving = append(drained.Leaving, name)
		case apierrors.IsNotFound(err), apierrors.IsConflict(err): // Gone, or another pod of that name: the next pass sees.
		case apierrors.IsTooManyRequests(err):
			drained.Blocked = append(drained.Blocked, name+" ("+Clean(blocker(err), 200)+")")
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			drained.Leaving = append(drained.Leaving, name)
		default:
			problems = append(problems, fmt.Errorf("evicting pod %s: %w", name, err))
			drained.Blocked = append(drained.Blocked, name+" ("+Clean(err.Error(), 200)+")")
		}
	}
	slices.Sort(drained.Leaving)
	slices.Sort(drained.Blocked)
	return drained, failure.Join(problems...)
}

// evict asks once for the eviction of this very pod. The typed client would repeat a refused request by itself, ten times and for
// minutes.
func evict(ctx context.Context, clientset kubernetes.Interface, pod *corev1.Pod) error {
	return clientset.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		MaxRetries(0).
		Body(&policyv1.Eviction{
			TypeMeta:      metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: drain.EvictionKind},
			ObjectMeta:    metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
		}).
		Do(ctx).Error()
}

// blocker is the reason of a refused eviction, in the API server's words: the budget by name, where it says so.
func blocker(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		if details := status.Status().Details; details != nil && len(details.Causes) > 0 {
			return details.Causes[0].Message
		}
	}
	return err.Error()
}
