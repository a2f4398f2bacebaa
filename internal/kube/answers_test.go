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
	for code, want := range map[int]bool{
		http.StatusOK:                 true,
		http.StatusUnauthorized:       false,
		http.StatusServiceUnavailable: false,
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
			assert.Equal(t, want, err == nil, "%d %s: %v", code, what, err)
		}
		server.Close()
		assert.ElementsMatch(t, []string{"/version", "/api/v1/namespaces/kube-system"}, asked)
		for _, err := range []error{Answers(t.Context(), config), behind.FromEtcd(t.Context())} {
			require.Error(t, err, "nobody is there any more")
		}
	}
}
