package mctest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
)

const stopLimit = time.Minute

// Main starts a cluster, hands it to use, runs the tests and stops the cluster.
// It returns the exit code for os.Exit. With -short there is no cluster: tests
// that need one have to skip. For a cluster with hosts, the tests run in a
// private network: they can reach pods, and nothing outside.
func Main(m *testing.M, opts mc.Options, use func(*mc.Cluster)) int {
	flag.Parse()
	if testing.Short() {
		return m.Run()
	}
	if opts.Hosts > 0 {
		if err := prebuild(opts); err != nil {
			_, _ = fmt.Fprintf(os.Stderr, "building what the tests need: %v\n", err)
			return 1
		}
		return labnet.Main(func() int { return withCluster(m, opts, use) })
	}
	return withCluster(m, opts, use)
}

// prebuild happens outside, where modules can be downloaded.
func prebuild(opts mc.Options) error {
	if labnet.Inside() {
		return nil
	}
	return opts.Prebuild(context.Background())
}

func withCluster(m *testing.M, opts mc.Options, use func(*mc.Cluster)) int {
	ctx := context.Background()
	c, err := mc.Start(ctx, opts)
	if err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "starting the cluster for the tests: %v\n", err)
		return 1
	}
	use(c)
	code := m.Run()

	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
