package manager

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

func parsed(t *testing.T, args ...string) *Options {
	t.Helper()
	o := NewOptions()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.AddFlags(fs)
	require.NoError(t, fs.Parse(args))
	return o
}

func TestOptions(t *testing.T) {
	t.Parallel()
	o := parsed(t, "--launcher-image=launcher:1", "--boot-timeout=5m", "--silence-timeout=90s", "--shutdown-timeout=1m", "--memory-overhead=1Gi",
		"--accelerator=TCG", "--eviction-timeout=3m", "--image-dir=/images", "--cluster-domain=example.org", "--priority-class=virtual-machines", "--metrics-bind-address=:1234")
	require.NoError(t, o.Validate())
	m := o.Machines
	assert.Equal(t, "launcher:1", m.Image)
	assert.EqualValues(t, 300, m.BootSeconds)
	assert.EqualValues(t, 90, m.SilenceSeconds)
	assert.EqualValues(t, 60, m.ShutdownSeconds)
	assert.EqualValues(t, 1<<30, m.Overhead.Value())
	assert.Equal(t, contract.AcceleratorTCG, m.Accelerator)
	assert.Equal(t, 3*time.Minute, m.EvictionTimeout)
	assert.Equal(t, "/images", m.ImageDir)
	assert.Equal(t, "example.org", m.ClusterDomain)
	assert.Equal(t, "virtual-machines", m.PriorityClass)
	assert.Equal(t, ":1234", o.Servers.DiagnosticsAddress)
	assert.Equal(t, ":8443", parsed(t).Servers.DiagnosticsAddress)
}

func TestWrongOptionsAreNamed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		flag, want string
	}{
		"no image":                {"--launcher-image=", "--launcher-image is required"},
		"relative directory":      {"--image-dir=images", `--image-dir "images": has to be an absolute path`},
		"no domain":               {"--cluster-domain=a_b", `--cluster-domain "a_b": is no DNS domain`},
		"no class":                {"--priority-class=Virtual Machines", `--priority-class "Virtual Machines": is no name of a PriorityClass`},
		"no amount":               {"--memory-overhead=much", `--memory-overhead "much": has to be an amount`},
		"less than nothing":       {"--memory-overhead=-1Gi", `--memory-overhead "-1Gi": has to be an amount`},
		"no accelerator":          {"--accelerator=xen", `--accelerator "xen": has to be auto, kvm or tcg`},
		"no time to boot":         {"--boot-timeout=0s", "--boot-timeout 0s: has to be between 1s and 24h"},
		"no time to drain":        {"--eviction-timeout=0s", "--eviction-timeout 0s: has to be between 1s and 24h"},
		"less than no logs":       {"--followed-logs=-1", "--followed-logs -1: cannot be negative"},
		"nobody works":            {"--kvmmachine-concurrency=0", "--kvmmachine-concurrency 0: has to be at least 1"},
		"endless resync":          {"--sync-period=1ms", "--sync-period 1ms: has to be at least 1s"},
		"a leader that cannot be": {"--leader-elect-lease-duration=1s", "--leader-elect-lease-duration has to be longer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.ErrorContains(t, parsed(t, "--launcher-image=x", "--leader-elect", test.flag).Validate(), test.want)
		})
	}
	err := parsed(t, "--accelerator=xen").Validate()
	assert.Len(t, strings.Split(err.Error(), "\n"), 2, "all problems at once: %v", err)
}

func TestCacheHoldsNoSecrets(t *testing.T) {
	t.Parallel()
	disabled := map[string]bool{}
	for _, o := range clientOptions().Cache.DisableFor {
		_, secret := o.(*corev1.Secret)
		disabled["secret"] = disabled["secret"] || secret
	}
	assert.True(t, disabled["secret"])
	options, err := cacheOptions(parsed(t, "--namespace=org-acme"))
	require.NoError(t, err)
	assert.Contains(t, options.DefaultNamespaces, "org-acme")
	for o, by := range options.ByObject {
		if _, isPod := o.(*corev1.Pod); isPod {
			assert.Equal(t, "infrastructure.cluster.x-k8s.io/machine", by.Label.String())
		}
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	run := func(args ...string) (string, error) {
		out := &bytes.Buffer{}
		cmd := NewCommand("v1.2.3")
		cmd.SetOut(out)
		cmd.SetErr(out)
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	out, err := run("version")
	require.NoError(t, err)
	var version Version
	require.NoError(t, json.Unmarshal([]byte(out), &version))
	assert.Equal(t, "v1.2.3", version.Version)

	out, err = run("--version")
	require.NoError(t, err)
	assert.Contains(t, out, "v1.2.3")

	out, err = run("--help")
	require.NoError(t, err)
	for _, flag := range []string{"--namespace", "--watch-filter", "--leader-elect", "--diagnostics-address", "--launcher-image", "--webhook-cert-dir", "Examples:"} {
		assert.Contains(t, out, flag)
	}
	_, err = run()
	require.ErrorContains(t, err, "--launcher-image is required")
	_, err = run("--log-format=xml", "--launcher-image=x")
	require.ErrorContains(t, err, `format "xml" is unknown`)
	_, err = run("surplus")
	require.Error(t, err)
}

func TestVersionIsServed(t *testing.T) {
	t.Parallel()
	recorder := httptest.NewRecorder()
	NewVersion("v1").ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/version", nil))
	assert.Equal(t, "application/json", recorder.Header().Get("Content-Type"))
	assert.Contains(t, recorder.Body.String(), `"goVersion":"go`)
}
