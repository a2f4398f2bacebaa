package provider

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/manager"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
)

// theProgram is capk-controller, compiled from this tree: only processes of their own can be told to end, or killed, one without the other.
var theProgram = sync.OnceValues(func() (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	source, err := builder.FindSource(here)
	if err != nil {
		return "", err
	}
	b, err := builder.New(builder.Options{Out: os.Stderr})
	if err != nil {
		return "", err
	}
	programs, err := b.Local(context.Background(), source, builder.CAPKController)
	return programs[builder.CAPKController], err
})

// candidate starts a manager that looks after the demo's namespace when it leads, and returns when it is ready. That it serves webhooks is part of that, whoever leads.
func (d *demo) candidate(t *testing.T, name string, lease time.Duration) string {
	t.Helper()
	program, err := theProgram()
	require.NoError(t, err)
	name += "-of-" + d.namespace
	certs, err := d.management.ServingCert(name)
	require.NoError(t, err)
	ports, err := d.management.FreePorts(t.Context(), 3)
	require.NoError(t, err)
	health := fmt.Sprintf("127.0.0.1:%d", ports[0])
	t.Cleanup(func() {
		assert.NoError(t, d.management.StopComponent(context.WithoutCancel(t.Context()), name))
	})
	require.NoError(t, d.management.Run(t.Context(), mc.Process{
		Name: name,
		Argv: []string{
			program, "--kubeconfig=" + d.management.KubeconfigPath(), "--namespace=" + d.namespace, "--launcher-image=vm-launcher:test",
			"--leader-elect", "--leader-elect-namespace=" + d.namespace, "--leader-elect-lease-duration=" + lease.String(),
			"--leader-elect-renew-deadline=" + (lease - 2*time.Second).String(), "--leader-elect-retry-period=1s", "--health-addr=" + health,
			fmt.Sprintf("--diagnostics-address=127.0.0.1:%d", ports[1]), "--insecure-diagnostics",
			"--webhook-host=127.0.0.1", fmt.Sprintf("--webhook-port=%d", ports[2]), "--webhook-cert-dir=" + certs,
		},
		Ready: func(ctx context.Context) error { return asked(ctx, "http://"+health+"/readyz") },
	}))
	return name
}

// asked wants a 200 from a URL.
func asked(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // Nothing was written.
	if response.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %s", response.Status, body)
}

// leader is who holds the Lease.
func (d *demo) leader(t *testing.T) string {
	t.Helper()
	lease := &coordinationv1.Lease{}
	require.NoError(t, d.Get(t.Context(), client.ObjectKey{Namespace: d.namespace, Name: manager.LeaderElectionID}, lease))
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

// TestAnotherManagerTakesOver when the one that led is gone: at once where that one was told to end, because it gives its Lease back, and when the Lease has run out where it was killed.
func TestAnotherManagerTakesOver(t *testing.T) {
	t.Parallel()
	lab := needFaultLab(t)
	for name, test := range map[string]struct {
		ends  func(*mc.Cluster, context.Context, string) error
		lease time.Duration
	}{
		"from one that was told to end": {func(c *mc.Cluster, ctx context.Context, name string) error {
			return c.EndComponent(ctx, name, time.Minute)
		}, time.Hour},
		"from one that was killed": {(*mc.Cluster).KillComponent, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, elsewhere := lab.newDemo(t), lab.newDemo(t)
			elsewhere.newMachine(t, "of-nobody")
			first := d.candidate(t, "first", test.lease)
			one := d.newMachine(t, "one")
			pod := d.pod(t, one)
			led := d.leader(t)
			d.candidate(t, "second", test.lease)
			assert.Equal(t, led, d.leader(t), "the second one waits")

			require.NoError(t, test.ends(lab.management, t.Context(), first))

			d.pod(t, d.newMachine(t, "two"))
			assert.NotEqual(t, led, d.leader(t))
			assert.Equal(t, pod.UID, d.pod(t, one).UID, "what the first one made stays")
			assert.Len(t, d.pods(t), 2)
			assert.Empty(t, elsewhere.pods(t), "they look after one namespace")
		})
	}
}
