package gate

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
)

func TestAnAddressHasToAnswerAsItIsToldTo(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
		case "/gone":
			http.Redirect(w, r, "/ok", http.StatusFound)
		case "/slow":
			<-slow
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(slow) })
	a := &Asker{Client: Client(server.Client().Transport)}
	for path, want := range map[string]string{
		"/ok?token=s3cr3t":   "",
		"/down?token=s3cr3t": "/down answers with status 503, and not 200",
		"/gone":              "/gone answers with status 302, and not 200",
		"/slow?token=s3cr3t": "/slow does not answer: context deadline exceeded",
	} {
		limit := time.Minute
		if strings.HasPrefix(path, "/slow") {
			limit = 200 * time.Millisecond
		}
		refused := a.Ask(t.Context(), []Gate{{Name: "slo", Before: []string{Node}, URL: server.URL + path, Status: http.StatusOK, Timeout: limit}}, Node)
		if want == "" {
			assert.Nil(t, refused)
			continue
		}
		require.NotNil(t, refused, path)
		assert.Contains(t, refused.Why, want)
		assert.NotContains(t, refused.Why, "s3cr3t")
	}
	nobody := httptest.NewServer(nil)
	nobody.Close()
	refused := a.Ask(t.Context(), []Gate{{Before: []string{Node}, URL: nobody.URL + "/?token=s3cr3t", Status: http.StatusOK, Timeout: time.Second}}, Node)
	require.NotNil(t, refused)
	assert.Contains(t, refused.Why, "does not answer")
	assert.NotContains(t, refused.Why, "s3cr3t")
}

func TestChecksHaveToPassOrWarn(t *testing.T) {
	t.Parallel()
	made := 0
	a := &Asker{Checks: func(context.Context) ([]check.Result, error) {
		made++
		return []check.Result{{ID: "CHK-A", Outcome: check.Pass}, {ID: "CHK-B", Outcome: check.Warn}, {ID: "CHK-C", Outcome: check.Block, Title: "it is well", Detail: "it is not"}, {ID: "CHK-D", Outcome: check.Skip}}, nil
	}}
	ask := func(before string, ids ...string) *Refusal {
		return a.Ask(t.Context(), []Gate{{Name: "well", Before: []string{"control-plane", NoReturn}, Checks: ids}}, before)
	}
	assert.Nil(t, ask("control-plane", "CHK-A", "CHK-B"))
	assert.Nil(t, ask("workers", "CHK-C"), "it stands elsewhere")
	assert.Equal(t, 1, made)
	assert.Equal(t, "check CHK-C says block: it is well. it is not", ask(NoReturn, "CHK-A", "CHK-C").Why)
	assert.Contains(t, ask(NoReturn, "CHK-D").Why, "says skip", "who could not look does not say that all is well")
	assert.Equal(t, "check CHK-E was not made", ask(NoReturn, "CHK-E").Why)
	a.Checks = func(context.Context) ([]check.Result, error) { return nil, errors.New("away") }
	assert.Equal(t, "the checks could not be made: away", ask(NoReturn, "CHK-A").Why)
}

// TestTheClusterIsLookedAtOnceForAllGates that stand before what begins, and not at all for those that ask an address.
func TestTheClusterIsLookedAtOnceForAllGates(t *testing.T) {
	t.Parallel()
	made := 0
	a := &Asker{Checks: func(context.Context) ([]check.Result, error) {
		made++
		return []check.Result{{ID: "CHK-A", Outcome: check.Pass}, {ID: "CHK-B", Outcome: check.Block, Title: "it is well"}}, nil
	}}
	gates := []Gate{{Name: "one", Before: []string{"workers"}, Checks: []string{"CHK-A"}}, {Name: "two", Before: []string{Node}, Checks: []string{"CHK-A"}}, {Name: "three", Before: []string{"workers", Node}, Checks: []string{"CHK-B"}}}
	assert.Nil(t, a.Ask(t.Context(), gates, "adopt"))
	assert.Zero(t, made)
	refused := a.Ask(t.Context(), gates, "workers", Node)
	require.NotNil(t, refused)
	assert.Equal(t, "three", refused.Gate.Name)
	assert.Equal(t, 1, made)
	assert.Nil(t, a.Ask(t.Context(), gates[:2], Node))
	assert.Equal(t, 2, made, "the next time it is looked at again")
}
