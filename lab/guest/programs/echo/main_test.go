package main

import (
	"context"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWhoIsToldToEndServesOnForAWhile: nobody who asks knows yet.
func TestWhoIsToldToEndServesOnForAWhile(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), http.NoBody)
		require.NoError(t, err)
		response, err := client.Do(request)
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	const longer = 10 * time.Second
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveOn(ctx, listener, longer, http.NotFoundHandler()) }()
	require.NoError(t, ask())
	end()
	require.NoError(t, ask(), "it was told to end")
	require.NoError(t, <-ended)
	assert.Error(t, ask(), "it has ended")
}

// TestTheAPIIsAskedByItsService: an answer of the API is one of the workload, and so is that there is none.
func TestTheAPIIsAskedByItsService(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" {
			http.NotFound(w, r)
		}
	}))
	file := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	get := func(a *api, path string) int {
		w := httptest.NewRecorder()
		routes("echo", a).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		return w.Code
	}
	ask := func(a *api) int { return get(a, "/api") }
	there := &api{address: server.Listener.Addr().String(), authority: file}
	assert.Equal(t, http.StatusOK, ask(there))
	assert.Equal(t, http.StatusBadGateway, ask(&api{address: there.address, authority: filepath.Join(t.TempDir(), "none")}), "nobody knows whom to trust")
	server.Close()
	assert.Equal(t, http.StatusBadGateway, ask(there), "it has ended")
	assert.Equal(t, http.StatusBadGateway, get(there, "/api/"))
	assert.Equal(t, http.StatusOK, get(there, "/"), "it serves all the same")
}
