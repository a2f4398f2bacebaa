package kube_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

var _ plan.DryRunApplier = &kube.DryRun{}

func TestADryRunIsAlwaysOne(t *testing.T) {
	t.Parallel()
	applied := 0
	full := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Apply: func(_ context.Context, _ client.WithWatch, _ runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			applied++
			var options client.ApplyOptions
			options.ApplyOptions(opts)
			assert.Equal(t, []string{"All"}, options.DryRun)
			assert.Equal(t, "migrate", options.FieldManager)
			assert.Nil(t, options.Force)
			return nil
		},
	})
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
	object.SetName("x")
	before := object.DeepCopy()
	answer, err := kube.NewDryRun(full).DryRunApply(t.Context(), object)
	require.NoError(t, err)
	assert.Equal(t, 1, applied)
	assert.Equal(t, before, object, "the object given is left as it is")
	assert.NotSame(t, object, answer)
}

func TestWhatReadersGetCanOnlyRead(t *testing.T) {
	t.Parallel()
	connection, err := kube.ForConfig(&rest.Config{Host: "http://127.0.0.1:1"}, kube.Options{Version: "1"})
	require.NoError(t, err)
	_, writes := connection.Reader.(client.Writer)
	assert.False(t, writes, "a type assertion must not lead to a writer")
	var applier any = connection.Applier
	_, writes = applier.(client.Writer)
	assert.False(t, writes)
	_, reads := applier.(client.Reader)
	assert.False(t, reads)
}

func TestTheGuardIsInFrontOfTheNetwork(t *testing.T) {
	t.Parallel()
	sent := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { sent++; w.WriteHeader(http.StatusOK) }))
	t.Cleanup(server.Close)
	var guarded http.RoundTripper
	config := &rest.Config{Host: server.URL}
	connection, err := kube.ForConfig(config, kube.Options{Version: "1", Wrap: func(next http.RoundTripper) http.RoundTripper {
		guarded = next
		return next
	}})
	require.NoError(t, err)
	require.NotNil(t, guarded)
	require.NoError(t, connection.Ping(t.Context()))
	assert.Equal(t, 1, sent)
	assert.Nil(t, config.WrapTransport, "the configuration given is left as it is")
}

func TestAnEmptyConfigurationIsNoCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := kube.Connect(&kube.Flags{ConfigFlags: genericclioptions.NewConfigFlags(true)}, kube.Options{})
	require.ErrorIs(t, err, kube.ErrNoCluster)

	named := genericclioptions.NewConfigFlags(true)
	server := "http://localhost:8080"
	named.APIServer = &server
	_, err = kube.Connect(&kube.Flags{ConfigFlags: named}, kube.Options{})
	require.NoError(t, err, "whoever names that server means it")
}

// TestSeveralMayConnectAtOnce with a credential plugin, of which client-go shares what it writes; the race detector sees who does not wait.
func TestSeveralMayConnectAtOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(`apiVersion: v1
kind: Config
current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://api.example.test"}}]
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: never-run, interactiveMode: Never, installHint: hint}}}]
`), 0o600))
	flags := &kube.Flags{ConfigFlags: genericclioptions.NewConfigFlags(true)}
	flags.KubeConfig = &file
	var around sync.WaitGroup
	for range 4 {
		around.Go(func() {
			for range 20 {
				_, err := kube.Connect(flags, kube.Options{})
				assert.NoError(t, err)
			}
		})
	}
	around.Wait()
}

func TestAKubeconfigFromAClusterStartsNoProgramAndReadsNoFile(t *testing.T) {
	t.Parallel()
	marker := filepath.Join(t.TempDir(), "marker")
	const whole = `apiVersion: v1
kind: Config
current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://api.example.test"CLUSTER}}]
users: [{name: u, user: {USER}}]
`
	text := func(cluster, user string) []byte {
		return []byte(strings.NewReplacer("CLUSTER", cluster, "USER", user).Replace(whole))
	}
	config, err := kube.ConfigFromSecret(text("", `token: abc`))
	require.NoError(t, err)
	assert.Equal(t, "https://api.example.test", config.Host)
	assert.Equal(t, "abc", config.BearerToken)

	for name, data := range map[string][]byte{
		"a program":         text("", `exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: ["`+marker+`"], interactiveMode: Never}`),
		"an auth provider":  text("", `auth-provider: {name: gcp}`),
		"a key file":        text("", `client-key: /etc/passwd, client-certificate: /etc/passwd`),
		"a token file":      text("", `tokenFile: /etc/passwd`),
		"a CA file":         text(`, certificate-authority: /etc/passwd`, `token: abc`),
		"a proxy":           text(`, proxy-url: "http://evil.example.test"`, `token: abc`),
		"no context":        []byte("apiVersion: v1\nkind: Config\n"),
		"an unknown user":   []byte(strings.Replace(string(text("", "")), "user: u}", "user: v}", 1)),
		"something else":    []byte("\x00\x01binary"),
		"a broken document": []byte("users: [{name: u, user: {token: sup3r-s3cret"),
	} {
		_, err := kube.ConfigFromSecret(data)
		require.Error(t, err, name)
		assert.NotContains(t, err.Error(), "sup3r-s3cret")
	}
	_, err = os.Stat(marker)
	require.ErrorIs(t, err, os.ErrNotExist)
}
