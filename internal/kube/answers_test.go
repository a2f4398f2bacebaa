package kube

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// TestWhatCountsAsAnAnswer of an API server that answers every question with one code.
func TestWhatCountsAsAnAnswer(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]struct{ own, behind bool }{
		http.StatusOK:                 {true, true},
		http.StatusUnauthorized:       {false, true}, // The one behind the Service is asked without credentials.
		http.StatusForbidden:          {false, true},
		http.StatusServiceUnavailable: {false, false}, // Nobody is behind it, or whoever is cannot be reached.
		http.StatusGatewayTimeout:     {false, false},
	} {
		var asked []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.Path)
			w.WriteHeader(code)
		}))
		config := &rest.Config{Host: server.URL}
		behind, err := NewAsker(config)
		require.NoError(t, err)
		for what, err := range map[string]error{"by its name": Answers(t.Context(), config), "from etcd": behind.FromEtcd(t.Context())} {
			assert.Equal(t, want.own, err == nil, "%d %s: %v", code, what, err)
		}
		err = behind.ByService(t.Context())
		assert.Equal(t, want.behind, err == nil, "%d by its Service: %v", code, err)
		server.Close()
		assert.ElementsMatch(t, []string{"/version", "/api/v1/namespaces/kube-system", "/api/v1/namespaces/default/services/https:kubernetes:https/proxy/version"}, asked)
		for _, err := range []error{Answers(t.Context(), config), behind.FromEtcd(t.Context()), behind.ByService(t.Context())} {
			require.Error(t, err, "nobody is there any more")
		}
	}
}
