package adopt

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// annotated is the cluster's Deployment, or its ReplicaSet, as its last writer left it.
func annotated(kind, by, value string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kindOf("apps/v1", kind))
	u.SetNamespace("al9qy")
	u.SetName("worker")
	u.SetUID("1")
	u.SetAnnotations(map[string]string{"note": value})
	u.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: by, Time: &metav1.Time{Time: time.Unix(1_700_000_000, 0)}}})
	return u
}

// watchedBy makes an adopter that sees one Deployment and one ReplicaSet, and what the two watches tell of them.
func watchedBy(tb testing.TB, watches map[string]watch.Interface) *Adopter {
	tb.Helper()
	api := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			found, ok := list.(*unstructured.UnstructuredList)
			if !assert.True(tb, ok) {
				return nil
			}
			switch found.GetKind() {
			case "DeploymentList":
				found.Items = []unstructured.Unstructured{*annotated("Deployment", "kvm-operator", "as it was")}
			case "ReplicaSetList":
				found.Items = []unstructured.Unstructured{*annotated("ReplicaSet", kubernetesItself, "as it was")}
			default:
				return &meta.NoKindMatchError{}
			}
			return nil
		},
		Watch: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) (watch.Interface, error) {
			return watches[list.GetObjectKind().GroupVersionKind().Kind], nil
		},
	}).Build()
	return &Adopter{Picture: &legacy.Cluster{ID: "al9qy"}, Management: Side{Client: api}, Clock: clock.RealClock{}}
}

// TestWhatKubernetesMadeOfAWriteIsNotTheLastWord: a Deployment that was written just before the first look is copied to its ReplicaSet just after it. A run in
// the lab stopped at that, and named a controller of Kubernetes where an operator was not silent.
func TestWhatKubernetesMadeOfAWriteIsNotTheLastWord(t *testing.T) {
	t.Parallel()
	made := ForeignWrite{Object: "ReplicaSet/al9qy/worker", What: "changed", Fields: []string{"metadata.annotations"}, By: kubernetesItself}
	asked := ForeignWrite{Object: "Deployment/al9qy/worker", What: "changed", Fields: []string{"metadata.annotations"}, By: "kvm-operator"}
	for name, c := range map[string]struct {
		again bool
		want  []ForeignWrite
	}{
		"the writer comes again":        {true, []ForeignWrite{asked, made}},
		"the writer does not come back": {false, []ForeignWrite{made}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				deployments, replicaSets := watch.NewRaceFreeFake(), watch.NewRaceFreeFake()
				a := watchedBy(t, map[string]watch.Interface{"DeploymentList": deployments, "ReplicaSetList": replicaSets})
				var err error
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					err = a.Settle(t.Context(), time.Minute)
				}()
				replicaSets.Modify(annotated("ReplicaSet", kubernetesItself, "new"))
				synctest.Wait()
				if c.again {
					deployments.Modify(annotated("Deployment", "kvm-operator", "newer"))
				}
				<-ended
				var foreign *ForeignWriteError
				require.ErrorAs(t, err, &foreign)
				assert.Equal(t, c.want, foreign.Writes)
			})
		})
	}
}
