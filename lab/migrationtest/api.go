package migrationtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/certtest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
)

// API is a cluster seen from its API server: who may ask, who wrote what, and
// how to make it fail.
type API struct {
	*mc.Cluster

	audit string
	marks atomic.Int64
}

// startAPI starts a cluster with an audit log. It owns dir, which goes with the
// cluster.
func startAPI(ctx context.Context, dir string, opts mc.Options) (*API, error) {
	policy := filepath.Join(dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("writing the audit policy: %w", err), os.RemoveAll(dir))
	}
	a := &API{audit: filepath.Join(dir, "audit.log")}
	args := map[string][]string{}
	for name, some := range opts.ExtraArgs {
		args[name] = slices.Clone(some)
	}
	args[builder.APIServer] = append(args[builder.APIServer], "--audit-policy-file="+policy, "--audit-log-path="+a.audit, "--audit-log-mode=blocking")
	opts.ExtraArgs, opts.Remove = args, append(opts.Remove, dir)
	var err error
	if a.Cluster, err = mc.Start(ctx, opts); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return a, nil
}

// StartBare starts an API server that knows the kinds of Cluster API and of the
// provider, with nobody who reconciles them. It ends with the test.
func StartBare(tb testing.TB, crdDirs ...string) *API {
	tb.Helper()
	dir, err := os.MkdirTemp("", "migrationtest-bare-") //nolint:usetesting // The cluster removes it itself.
	require.NoError(tb, err)
	a, err := startAPI(tb.Context(), dir, mc.Options{Parts: mc.APIServerOnly | mc.ClusterAPICRDs, CRDDirs: crdDirs})
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), stopLimit)
		defer cancel()
		require.NoError(tb, a.Stop(ctx))
	})
	return a
}

// As returns a configuration for a user of one's choice, who may do what the
// groups may; system:masters may do everything. Writes are counted by this
// name: see [API.Writes].
func (a *API) As(tb testing.TB, user string, groups ...string) *rest.Config {
	tb.Helper()
	raw, err := a.KubeconfigFor(user, groups...)
	require.NoError(tb, err)
	config, err := clientcmd.RESTConfigFromKubeConfig(raw)
	require.NoError(tb, err)
	config.QPS = -1
	return config
}

// Expired returns the same with a client certificate that has run out: the
// server answers that it does not know the user.
func (a *API) Expired(tb testing.TB, user string, groups ...string) *rest.Config {
	tb.Helper()
	config := a.As(tb, user, groups...)
	authority := a.Authority().Pair()
	old, err := certtest.EndAt(time.Now().Add(-time.Minute), config.CertData, authority.Cert, authority.Key)
	require.NoError(tb, err)
	config.CertData = old
	return config
}

// Freeze stops the API server as a machine under pressure would: connections
// stay open, nothing is answered. It goes on when the returned function is
// called for the first time, at the latest with the end of the test. An outage
// of some seconds is
//
//	time.AfterFunc(5*time.Second, cluster.Workload.Freeze(t))
func (a *API) Freeze(tb testing.TB) (thaw func()) {
	tb.Helper()
	pid := a.pid(tb)
	require.NoError(tb, syscall.Kill(pid, syscall.SIGSTOP))
	var once sync.Once
	thaw = func() {
		once.Do(func() {
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				tb.Errorf("letting the API server go on: %v", err)
			}
		})
	}
	tb.Cleanup(thaw)
	require.Eventually(tb, func() bool { return stopped(tb, pid) }, 10*time.Second, 5*time.Millisecond)
	return thaw
}

// stopped says whether no thread of a process runs any more. A signal is taken
// by one thread, and the others answer requests until they hear of it.
func stopped(tb testing.TB, pid int) bool {
	tb.Helper()
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		tb.Errorf("reading the threads of the API server: %v", err)
		return false
	}
	return !slices.ContainsFunc(threads, func(thread procfs.Proc) bool {
		stat, err := thread.Stat()
		return err != nil || stat.State != "T"
	})
}

// Crash kills the API server: connections break, new ones are refused. The
// returned function starts it again with the same data at the same address and
// waits until it is ready; at the latest that happens with the end of the test.
func (a *API) Crash(tb testing.TB) (restart func()) {
	tb.Helper()
	ctx := context.WithoutCancel(tb.Context())
	require.NoError(tb, a.KillComponent(ctx, builder.APIServer))
	var once sync.Once
	restart = func() {
		once.Do(func() {
			if err := a.StartComponent(ctx, builder.APIServer); err != nil {
				tb.Errorf("starting the API server again: %v", err)
			}
		})
	}
	tb.Cleanup(restart)
	return restart
}

func (a *API) pid(tb testing.TB) int {
	tb.Helper()
	for _, c := range a.Components() {
		if c.Name == builder.APIServer && c.State == mc.StateRunning {
			return c.PID
		}
	}
	require.Fail(tb, "the API server does not run")
	return 0
}

// until waits for something to become true.
func until(ctx context.Context, what string, limit time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if err != nil {
			return fmt.Errorf("waiting until %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, ctx.Err())
		}
	}
}
