package unattended

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/config/crd/migration"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

// TestALaterProgramRenewsItsDefinition with the rights of docs/unattended, where it has installed it; whose it is otherwise is told what to type. Otherwise the API server drops
// what the later program keeps.
func TestALaterProgramRenewsItsDefinition(t *testing.T) {
	if cluster == nil {
		t.Skip("needs a cluster, and there is none with -short")
	}
	admin, err := client.New(cluster.Config(), client.Options{})
	require.NoError(t, err)
	rights(t, admin)
	as := rest.CopyConfig(cluster.Config())
	as.Impersonate.UserName = "system:serviceaccount:migrate:migrate"
	account, err := client.NewWithWatch(as, client.Options{})
	require.NoError(t, err)
	var written []kube.Write
	side := adopt.Side{Client: account, Writer: kube.NewWriter(account, kube.WriterOptions{Told: func(w kube.Write) { written = append(written, w) }})}
	prepare := func() error {
		written = nil
		return migrate.Prepare(t.Context(), side, clock.RealClock{}, nil)
	}
	knows := func() bool {
		got := wanted(t)
		require.NoError(t, admin.Get(t.Context(), client.ObjectKeyFromObject(got), got))
		return savedEtcd(t, got) != nil
	}

	require.NoError(t, prepare())
	require.True(t, knows())
	require.NoError(t, prepare())
	assert.Empty(t, written, "it knows everything, and nothing is written")

	// An earlier program has installed it.
	earlier := wanted(t)
	delete(statusOf(t, earlier), "savedEtcd")
	require.NoError(t, admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(earlier), client.FieldOwner(kube.FieldOwner)))
	require.False(t, knows())
	require.NoError(t, prepare())
	assert.True(t, knows())
	assert.Len(t, written, 1)

	// Somebody else has, and is the one to renew it.
	earlier = wanted(t)
	delete(statusOf(t, earlier), "savedEtcd")
	require.NoError(t, admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(earlier), client.FieldOwner("kubectl"), client.ForceOwnership))
	err = prepare()
	require.ErrorContains(t, err, "lacks v1alpha1 .status.savedEtcd")
	require.ErrorContains(t, err, "migrate crd | kubectl apply --server-side --force-conflicts -f -")
	require.NoError(t, admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(wanted(t)), client.FieldOwner("kubectl"), client.ForceOwnership))
	require.NoError(t, prepare())
	assert.Empty(t, written)
}

// rights gives the account of docs/unattended what it may do; once is enough.
func rights(t *testing.T, c client.Client) {
	t.Helper()
	objects, err := manifest.ReadFile(filepath.Join("..", "..", "docs", "unattended", "rbac.yaml"))
	require.NoError(t, err)
	for _, o := range objects {
		if err := c.Create(t.Context(), o); !apierrors.IsAlreadyExists(err) {
			require.NoError(t, err, manifest.Describe(o))
		}
	}
}

// wanted is the definition of this program.
func wanted(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	definition := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal(migration.ClusterMigrationCRD(), &definition.Object))
	return definition
}

// statusOf are the properties of the status, not copied.
func statusOf(t *testing.T, definition *unstructured.Unstructured) map[string]any {
	t.Helper()
	list, _, err := unstructured.NestedFieldNoCopy(definition.Object, "spec", "versions")
	require.NoError(t, err)
	properties, _, err := unstructured.NestedFieldNoCopy(list.([]any)[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "status", "properties")
	require.NoError(t, err)
	return properties.(map[string]any)
}

func savedEtcd(t *testing.T, definition *unstructured.Unstructured) any {
	t.Helper()
	return statusOf(t, definition)["savedEtcd"]
}
