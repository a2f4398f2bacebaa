package pod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/network"
)

// Documented times.
const (
	deferPoll  = 5 * time.Second
	deferLimit = 2 * time.Minute
	bridgePoll = time.Second
	httpLimit  = 5 * time.Second
)

// wait calls done every period until it says so.
func wait(ctx context.Context, c clock.WithTicker, period time.Duration, done func() (bool, error)) error {
	tick := c.NewTicker(period)
	defer tick.Stop()
	for {
		ok, err := done()
		if err != nil || ok {
			return err
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitForAddress waits until a bridge has its address.
func waitForAddress(ctx context.Context, c clock.WithTicker, bridge string) (netip.Prefix, error) {
	var found netip.Prefix
	err := wait(ctx, c, bridgePoll, func() (ok bool, err error) {
		found, ok, err = network.Address(bridge)
		return ok, err
	})
	if err != nil {
		return found, fmt.Errorf("waiting for the address of %s: %w", bridge, err)
	}
	return found, nil
}

// WaitForDrain asks the deferrer until it no longer answers "true", but not for ever. A deferrer that is gone has nothing to wait for.
func WaitForDrain(ctx context.Context, c clock.WithTicker, url string) error {
	limit := c.Now().Add(deferLimit)
	return wait(ctx, c, deferPoll, func() (bool, error) {
		if !c.Now().Before(limit) {
			return true, nil
		}
		answer, err := ask(ctx, url)
		return err != nil || answer != "true", nil //nolint:nilerr // There is nobody to wait for.
	})
}

func ask(ctx context.Context, url string) (answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, httpLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("asking %s: %w", url, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("asking %s: %w", url, err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err != nil {
		return "", fmt.Errorf("reading the answer of %s: %w", url, err)
	}
	return strings.TrimSpace(string(raw)), nil
}
