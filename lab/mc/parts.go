package mc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// startParts starts everything besides the API server. The parts do not need
// each other, so they start at the same time; the first failure ends the start.
func (c *Cluster) startParts(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var wg sync.WaitGroup
	start := func(do func(context.Context) error) {
		wg.Go(func() {
			if err := do(ctx); err != nil {
				cancel(err)
			}
		})
	}
	if c.opts.Parts.Has(ControllerManager) {
		start(func(ctx context.Context) error { return c.runMade(ctx, c.controllerManager) })
	}
	if c.opts.Parts.Has(Scheduler) {
		start(func(ctx context.Context) error { return c.runMade(ctx, c.scheduler) })
	}
	if len(c.opts.CRDDirs) > 0 {
		start(func(ctx context.Context) error { return c.InstallCRDs(ctx, c.opts.CRDDirs...) })
	}
	if c.opts.Parts.Has(ClusterAPICRDs) {
		start(c.startClusterAPI)
	}
	if c.opts.Hosts > 0 {
		start(c.startNetwork)
	}
	wg.Wait()

	if err := context.Cause(ctx); err != nil {
		if errors.Is(err, context.Canceled) {
			return fmt.Errorf("starting the cluster: %w", err)
		}
		return err
	}
	if c.opts.Provider != NoProvider {
		if err := c.installProvider(ctx); err != nil {
			return err
		}
	}
	if c.opts.Parts != APIServerOnly {
		c.say("ready after %s: %s\n", round(c.opts.Clock.Since(c.began)), c.opts.Parts)
	}
	return nil
}

func (c *Cluster) runMade(ctx context.Context, describe func() (Process, error)) error {
	p, err := describe()
	if err != nil {
		return err
	}
	return c.Run(ctx, p)
}

// writeKubeconfig writes a kubeconfig for a component's user.
func (c *Cluster) writeKubeconfig(name, user string, groups ...string) (string, error) {
	raw, err := c.KubeconfigFor(user, groups...)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.pki(), name+".kubeconfig")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return "", fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	return path, nil
}
