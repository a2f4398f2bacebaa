package adoption

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// probePause makes ten questions a second.
const probePause = 100 * time.Millisecond

// probe asks the API by its old name all the time, and counts.
type probe struct {
	asked  int
	failed []string
	// longest is the longest time between two answers.
	longest time.Duration
}

// startProbe asks until stop is called. Each question has a connection of its own, or all share one.
func startProbe(t *testing.T, config *rest.Config, shared bool) (stop func() *probe) {
	t.Helper()
	tls, err := rest.TLSConfigFor(config)
	require.NoError(t, err)
	transport := &http.Transport{TLSClientConfig: tls, DisableKeepAlives: !shared, ForceAttemptHTTP2: shared}
	c := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	ctx, cancel := context.WithCancel(t.Context())
	p := &probe{}
	var done sync.WaitGroup
	done.Go(func() {
		last := time.Now()
		for ctx.Err() == nil {
			began := time.Now()
			if err := ask(ctx, c, config.Host+"/api/v1/namespaces/default"); err == nil {
				p.longest, last = max(p.longest, time.Since(last)), time.Now()
			} else if ctx.Err() == nil {
				p.failed = append(p.failed, fmt.Sprintf("%s: %s", began.UTC().Format("15:04:05.000"), err))
			}
			p.asked++
			select {
			case <-ctx.Done():
			case <-time.After(probePause):
			}
		}
	})
	return func() *probe {
		cancel()
		done.Wait()
		transport.CloseIdleConnections()
		return p
	}
}

func ask(ctx context.Context, c *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := c.Do(request)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return fmt.Errorf("it answered %s", response.Status)
	}
	return response.Body.Close()
}

func (p *probe) String() string {
	return fmt.Sprintf("%d of %d questions failed, the longest time between two answers was %s", len(p.failed), p.asked, p.longest.Round(time.Millisecond))
}
