package kube_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// TestAnAnswerThatIsBrokenOffMayComeLater has a real server break off an answer over HTTP/2, which resets the stream: an API server does so when a list
// takes longer than it allows, after its first bytes are sent.
func TestAnAnswerThatIsBrokenOffMayComeLater(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, 2, r.ProtoMajor)
		panic(http.ErrAbortHandler)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
	require.NoError(t, err)
	response, err := server.Client().Do(request)
	if err == nil {
		require.NoError(t, response.Body.Close())
	}
	require.ErrorContains(t, err, "INTERNAL_ERROR")
	assert.True(t, kube.Transient(fmt.Errorf("listing Nodes: %w", err)), "%T", errors.Unwrap(err))
	assert.False(t, kube.Transient(fmt.Errorf("listing Nodes: %w", context.Canceled)))
}

// TestAServerThatComesBackMayRefuseForAWhile: it has not read its roles and accounts yet.
func TestAServerThatComesBackMayRefuseForAWhile(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 28, 22, 0, 0, 0, time.UTC))
	r := kube.Returning{Clock: clk}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "x", errors.New("RBAC: not read yet"))
	unknown := apierrors.NewUnauthorized("who?")
	assert.False(t, r.Passes(forbidden), "it was there all the time")
	assert.True(t, r.Passes(syscall.ECONNREFUSED))
	assert.True(t, r.Passes(forbidden))
	assert.True(t, r.Passes(unknown))
	assert.False(t, r.Passes(nil))
	clk.Step(3 * time.Minute)
	assert.False(t, r.Passes(forbidden), "somebody took the right away")
}
