package check

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pageOfMetrics is cut from what kube-apiserver v1.21 answers; lab/acceptance asks a real one.
const pageOfMetrics = `# HELP apiserver_request_total [STABLE] Counter of apiserver requests broken out for each verb.
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver"} 7
# HELP apiserver_requested_deprecated_apis [STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.
# TYPE apiserver_requested_deprecated_apis gauge
apiserver_requested_deprecated_apis{group="policy",removed_release="1.25",resource="podsecuritypolicies",subresource="",version="v1beta1"} 1
apiserver_requested_deprecated_apis{group="extensions",removed_release="1.22",resource="ingresses",subresource="",version="v1beta1"} 1
apiserver_requested_deprecated_apis{group="extensions",removed_release="1.22",resource="ingresses",subresource="status",version="v1beta1"} 1
apiserver_requested_deprecated_apis{group="batch",removed_release="",resource="cronjobs",subresource="",version="v1beta1"} 1
apiserver_requested_deprecated_apis{group="rbac.authorization.k8s.io",removed_release="1.22",resource="roles",subresource="",version="v1beta1"} 0
`

func TestTheAPIServerSaysWhatItWasAskedFor(t *testing.T) {
	t.Parallel()
	answer := func(page string, err error) func(context.Context, string) ([]byte, error) {
		return func(_ context.Context, path string) ([]byte, error) {
			assert.Equal(t, "/metrics", path)
			return []byte(page), err
		}
	}
	got, err := AskRequests(t.Context(), answer(pageOfMetrics, nil))
	require.NoError(t, err)
	assert.Equal(t, []GoingAPI{{"extensions", "v1beta1", "ingresses", "1.22"}, {"policy", "v1beta1", "podsecuritypolicies", "1.25"}}, got.Going)

	got, err = AskRequests(t.Context(), answer("", nil))
	require.NoError(t, err)
	assert.Empty(t, got.Going)
	_, err = AskRequests(t.Context(), answer(metricRequested+"{group=", nil))
	require.ErrorContains(t, err, "reading the metrics of the workload cluster's API server: ")
	refused := errors.New("no")
	_, err = AskRequests(t.Context(), answer("", refused))
	require.ErrorIs(t, err, refused)
}
