package adoption

import (
	"os"
	"path/filepath"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

// unattended is who migrates in docs/unattended/rbac.yaml.
const unattended = "system:serviceaccount:migrate:migrate"

// withDocumentedRights leaves the operator the rights that docs/unattended/rbac.yaml gives to a CronJob, and no others.
func (x *takeover) withDocumentedRights() {
	x.Helper()
	objects, err := manifest.ReadFile(filepath.Join("..", "..", "docs", "unattended", "rbac.yaml"))
	require.NoError(x, err)
	require.NotEmpty(x, objects)
	for _, o := range objects {
		if err := x.management.Create(x.Context(), o); !apierrors.IsAlreadyExists(err) {
			require.NoError(x, err, manifest.Describe(o))
		}
	}
	// Who authorizes hears of a new binding a moment later.
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: unattended, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Group: "provider.giantswarm.io", Resource: "kvmconfigs"},
	}}
	require.Eventually(x, func() bool {
		asked := review.DeepCopy()
		return x.management.Create(x.Context(), asked) == nil && asked.Status.Allowed
	}, time.Minute, 100*time.Millisecond, "the rights of %s", unattended)
	raw, err := world.Management.KubeconfigFor(unattended)
	require.NoError(x, err)
	require.NoError(x, os.WriteFile(filepath.Join(x.o.dir, "kubeconfig"), raw, 0o600))
}
