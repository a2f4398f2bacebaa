package kube

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// TestAGatedConnectionAsksBeforeItWrites, and tells of what was written.
func TestAGatedConnectionAsksBeforeItWrites(t *testing.T) {
	t.Parallel()
	var reached []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached = append(reached, r.Method)
		if r.URL.Path == "/refused" {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(server.Close)
	var told []Write
	var gate error
	config := Gated(&rest.Config{Host: server.URL}, WriterOptions{Gate: func(context.Context) error { return gate }, Told: func(w Write) { told = append(told, w) }})
	c, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	send := func(method, path string) error {
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, http.NoBody)
		require.NoError(t, err)
		response, err := c.Do(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	require.NoError(t, send(http.MethodPost, "/eviction"))
	require.NoError(t, send(http.MethodPatch, "/node"))
	require.NoError(t, send(http.MethodPost, "/refused"))
	require.NoError(t, send(http.MethodGet, "/pods"))
	assert.Equal(t, []Write{{Created, "/eviction"}, {Patched, "/node"}}, told, "what was refused or only read is no write")

	reached, gate = nil, errors.New("the lock is lost")
	require.ErrorIs(t, send(http.MethodPost, "/eviction"), gate)
	require.NoError(t, send(http.MethodGet, "/pods"))
	assert.Equal(t, []string{http.MethodGet}, reached)
}
