package kube_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

func TestAPathIsReadAsItIs(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.RawQuery != "" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		if r.URL.Path != "/below/api/v1/nodes/n1/proxy/metrics" {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "not\nfor "+r.URL.Path)
			return
		}
		_, _ = io.WriteString(w, "up 1\n")
	}))
	defer server.Close()
	connection, err := kube.ForConfig(&rest.Config{Host: server.URL + "/below"}, kube.Options{Version: "1"})
	require.NoError(t, err)

	content, err := connection.Get(t.Context(), "/api/v1/nodes/n1/proxy/metrics")
	require.NoError(t, err)
	assert.Equal(t, "up 1\n", string(content))

	_, err = connection.Get(t.Context(), "/x?watch=1")
	require.ErrorContains(t, err, "reading /x?watch=1 from "+server.URL+"/below: the server answers 403 Forbidden: not for /below/x?watch=1",
		"a question mark is part of the path")

	server.Close()
	_, err = connection.Get(t.Context(), "/version")
	require.ErrorContains(t, err, "reading /version from ")
}
