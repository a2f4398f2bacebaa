package adoption

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

func mergePatch(format string, args ...any) client.Patch {
	return client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, format, args...))
}

// TestNothingIsWrittenWhenSomethingIsInTheWay breaks one thing per cluster; the run is refused, and the API servers saw no write.
func TestNothingIsWrittenWhenSomethingIsInTheWay(t *testing.T) {
	t.Parallel()
	for _, sabotage := range []struct {
		name string
		do   func(t *testing.T, c *migrationtest.Cluster, o *operator) []string
		code cli.Code
		says string
	}{
		{"a Node has a foreign provider ID", func(t *testing.T, c *migrationtest.Cluster, _ *operator) []string {
			t.Helper()
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.Master}}
			require.NoError(t, c.Workload.Client().Patch(t.Context(), node, mergePatch(`{"spec":{"providerID":"somebody://else"}}`)))
			return nil
		}, cli.CodeBlocked, "CHK-NODE-002"},
		{"the encryption Secret is missing", func(t *testing.T, c *migrationtest.Cluster, _ *operator) []string {
			t.Helper()
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: c.ID + "-encryption"}}
			require.NoError(t, world.Client.Delete(t.Context(), secret))
			return nil
		}, cli.CodeBlocked, "CHK-SEC-003"},
		{"the CA key is another cluster's", func(t *testing.T, _ *migrationtest.Cluster, o *operator) []string {
			t.Helper()
			other := newOperator(t, world.Cluster(t, migrationtest.ClusterOptions{NoWorkload: true}), "other")
			return []string{"--ca-cert", filepath.Join(other.dir, "ca.crt"), "--ca-key", filepath.Join(other.dir, "ca.key")}
		}, cli.CodeBlocked, "CHK-PKI-003"},
		{"the workload cluster's credentials have expired", func(t *testing.T, c *migrationtest.Cluster, _ *operator) []string {
			t.Helper()
			c.ExpireKubeconfig(t)
			return nil
		}, cli.CodeBlocked, "CHK-READ-001"},
		{"a name is taken", func(t *testing.T, c *migrationtest.Cluster, _ *operator) []string {
			t.Helper()
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.Namespace}}
			require.NoError(t, client.IgnoreAlreadyExists(world.Client.Create(t.Context(), namespace)))
			taken := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.ID + "-ca"}}
			require.NoError(t, world.Client.Create(t.Context(), taken))
			return nil
		}, cli.CodeBlocked, "CHK-CAPI-004"},
	} {
		t.Run(sabotage.name, func(t *testing.T) {
			t.Parallel()
			c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
			o := newOperator(t, c, "careful")
			more := sabotage.do(t, c, o)
			management, workload := world.Management.Mark(t), c.Workload.Mark(t)
			code, _, said := o.run(t.Context(), more...)
			assert.Equal(t, sabotage.code, code, said)
			assert.Contains(t, said, sabotage.says)
			assert.Contains(t, said, "Nothing was written")
			assert.Empty(t, world.Management.Writes(t, management).By("careful").Done(), "writes to the management cluster")
			assert.Empty(t, c.Workload.Writes(t, workload).ByAgent("migrate").Done(), "writes to the workload cluster")
		})
	}
}

// TestAForeignWriterStopsTheRun lets a GitOps-like tool apply the Deployments all the time: the settle time finds it and names it, and what
// was done so far is taken back by the command the program prints.
func TestAForeignWriterStopsTheRun(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, c, "watchful")
	var once atomic.Bool
	o.wrap = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if strings.Contains(request.URL.Path, "/kvmconfigs/") && request.Method == http.MethodPatch && once.CompareAndSwap(false, true) {
				c.ForeignWriter(t, 300*time.Millisecond)
			}
			return next.RoundTrip(request)
		})
	}
	code, _, said := o.run(t.Context(), "--settle", "5s")
	require.Equal(t, cli.CodeStopped, code, said)
	assert.Contains(t, said, "fence/settle")
	assert.Contains(t, said, "Deployment/"+c.ID)
	assert.Contains(t, said, "kvm-operator")
	assert.Contains(t, said, "migrate rollback "+c.ID)
	code, _, said = o.rollback(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
}

// TestADeletedClusterIsGivenBackAllTheSame has somebody delete an adopted cluster's Cluster: its machines run on, and the rollback needs nothing of what is gone.
func TestADeletedClusterIsGivenBackAllTheSame(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]bool{"being-deleted": false, "gone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			giveBackDeleted(t, gone)
		})
	}
}

func giveBackDeleted(t *testing.T, gone bool) {
	t.Helper()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, c, "sorry-"+strconv.FormatBool(gone))
	before, pods := c.State(t), c.Pods(t)
	code, _, said := o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)

	cluster := capiCluster(c)
	require.NoError(t, world.Client.Delete(t.Context(), cluster))
	machines := &unstructured.UnstructuredList{}
	machines.SetGroupVersionKind(cluster.GroupVersionKind().GroupVersion().WithKind("MachineList"))
	require.Eventually(t, func() bool {
		require.NoError(t, world.Client.List(t.Context(), machines, client.InNamespace(c.Namespace)))
		return len(machines.Items) == len(pods) && !slices.ContainsFunc(machines.Items, func(m unstructured.Unstructured) bool { return m.GetDeletionTimestamp() == nil })
	}, time.Minute, 100*time.Millisecond, "Cluster API deletes what belongs to the Cluster")
	if gone {
		require.NoError(t, world.Client.Patch(t.Context(), cluster, mergePatch(`{"metadata":{"finalizers":null}}`)))
	}
	for id, pod := range c.Pods(t) {
		assert.Equal(t, pods[id].UID, pod.UID, "a hook of the migration keeps the machine: %s", id)
	}
	code, _, said = o.rollback(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	assertGivenBack(t, c, before)
}

// capiCluster names the Cluster that a migration makes of a legacy one.
func capiCluster(c *migrationtest.Cluster) *unstructured.Unstructured {
	cluster := &unstructured.Unstructured{}
	cluster.SetGroupVersionKind(schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Cluster"})
	cluster.SetNamespace(c.Namespace)
	cluster.SetName(c.ID)
	return cluster
}

// TestADeletedClusterIsNotUnpaused: Cluster API would take apart what is adopted. It cannot while the Cluster is paused.
func TestADeletedClusterIsNotUnpaused(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, c, "hasty")
	before := c.State(t)
	code, _, said := o.run(t.Context(), "--until", "translate")
	require.Equal(t, cli.CodeOK, code, said)
	cluster := capiCluster(c)
	require.NoError(t, world.Client.Delete(t.Context(), cluster))
	code, _, said = o.run(t.Context())
	require.NotEqual(t, cli.CodeOK, code, said)
	assert.Contains(t, said, "is being deleted; give the cluster back with migrate rollback "+c.ID)
	require.NoError(t, world.Client.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster))
	paused, _, err := unstructured.NestedBool(cluster.Object, "spec", "paused")
	require.NoError(t, err)
	assert.True(t, paused)
	code, _, said = o.rollback(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	assertGivenBack(t, c, before)
}

// TestAReplacedPodStopsTheRun deletes a VM's pod after the run has begun to fence: its replacement is another VM.
func TestAReplacedPodStopsTheRun(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, c, "precise")
	code, _, said := o.run(t.Context(), "--until", "fence")
	require.Equal(t, cli.CodeOK, code, said)
	for node, pod := range c.Pods(t) {
		if pod.Labels["app"] == "worker" {
			require.NoError(t, world.Client.Patch(t.Context(), &pod, mergePatch(`{"metadata":{"finalizers":null}}`)))
			require.NoError(t, world.Client.Delete(t.Context(), &pod, client.GracePeriodSeconds(0)))
			require.Eventually(t, func() bool {
				replacement, there := c.Pods(t)[node]
				return there && replacement.UID != pod.UID
			}, time.Minute, 100*time.Millisecond, "the ReplicaSet makes another pod")
		}
	}
	code, _, said = o.run(t.Context())
	require.Equal(t, cli.CodeStopped, code, said)
	assert.Contains(t, said, "migrate rollback "+c.ID)
}

// TestTheSecondOperatorIsRefused holds the first run in its settle time; the second one learns who it is.
func TestTheSecondOperatorIsRefused(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	first, second := newOperator(t, c, "grace"), newOperator(t, c, "heidi")
	begun := make(chan struct{})
	var once atomic.Bool
	first.wrap = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if strings.Contains(request.URL.Path, "/kvmconfigs/") && request.Method == http.MethodPatch && once.CompareAndSwap(false, true) {
				close(begun)
			}
			return response, err
		})
	}
	soft, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan cli.Code, 1)
	go func() {
		code, _, _ := first.run(soft, "--settle", "10m")
		ended <- code
	}()
	select {
	case <-begun:
	case code := <-ended:
		require.Fail(t, "the first run ended", "exit code %d", code)
	}
	code, _, said := second.run(t.Context())
	assert.Equal(t, cli.CodeBlocked, code, said)
	assert.Contains(t, said, "grace@")
	stop()
	code, _, said = second.migrate(t.Context(), "status", c.ID)
	assert.Equal(t, cli.CodeOK, code, said)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// TestPauseAndResume stops a run between two steps, and lets it go on.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, c, "patient")
	code, _, said := o.run(t.Context(), "--until", "fence")
	require.Equal(t, cli.CodeOK, code, said)
	code, out, said := o.migrate(t.Context(), "pause", c.ID, "--reason", "disk alert", "-o", "text", "-o", "json="+filepath.Join(o.dir, "pause.json"))
	require.Equal(t, cli.CodeOK, code, said)
	assert.Contains(t, out, "migrate resume "+c.ID)
	var paused struct {
		Cluster string
		Pause   migrationv1alpha1.Pause
	}
	text, err := os.ReadFile(filepath.Join(o.dir, "pause.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &paused))
	assert.Equal(t, c.ID, paused.Cluster)
	assert.Equal(t, "disk alert", paused.Pause.Reason)
	code, _, said = o.run(t.Context())
	require.Equal(t, cli.CodeWaiting, code, said)
	assert.Contains(t, said, "disk alert")
	_, status, _ := o.migrate(t.Context(), "status", c.ID)
	assert.Contains(t, status, "disk alert")
	code, _, said = o.migrate(t.Context(), "resume", c.ID, "--yes", "--settle", "200ms", "--patience", patience, "--decisions", filepath.Join(o.dir, "decisions.yaml"),
		"--ca-cert", filepath.Join(o.dir, "ca.crt"), "--ca-key", filepath.Join(o.dir, "ca.key"))
	require.Equal(t, cli.CodeOK, code, said)
	_, events, _ := o.migrate(t.Context(), "events", c.ID, "-o", "json")
	assert.Contains(t, events, `"type":"run.resumed"`)
	assert.Contains(t, events, `"step":"adopt/lock"`)
}

// TestTheOperatorsCredentialsExpire lets a client certificate run out in the middle of a run: the server no longer knows who asks. The run ends
// and says so, and with new credentials the same command goes on.
func TestTheOperatorsCredentialsExpire(t *testing.T) {
	t.Parallel()
	const name = "expiring"
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, c, name)
	expired, err := rest.TransportFor(world.Management.Expired(t, name, "system:masters"))
	require.NoError(t, err)
	management := strings.TrimPrefix(world.Management.URL(), "https://")
	var writes atomic.Int64
	o.wrap = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if request.URL.Host != management {
				return next.RoundTrip(request)
			}
			if request.Method != http.MethodGet {
				writes.Add(1)
			}
			if writes.Load() > 40 {
				return expired.RoundTrip(request)
			}
			return next.RoundTrip(request)
		})
	}
	code, _, said := o.run(t.Context())
	require.NotEqual(t, cli.CodeOK, code)
	assert.Contains(t, said, "Unauthorized")
	assert.Contains(t, said, "migrate run "+c.ID, "how to go on")
	pods := c.Pods(t)

	o.wrap = nil
	code, stdout, said := o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	assert.Equal(t, "ok", decode(t, stdout).Outcome)
	for id, pod := range c.Pods(t) {
		assert.Equal(t, pods[id].UID, pod.UID, id)
	}
}

// TestTheWorkloadAPIGoesAway stops the workload cluster's API server in the middle of a run; it goes on by itself.
func TestTheWorkloadAPIGoesAway(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, c, "steadfast")
	var once atomic.Bool
	o.wrap = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if strings.Contains(request.URL.Path, "/nodes/") && request.Method == http.MethodPatch && once.CompareAndSwap(false, true) {
				time.AfterFunc(3*time.Second, c.Workload.Crash(t))
			}
			return next.RoundTrip(request)
		})
	}
	code, _, said := o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	assert.Contains(t, said, "retry")
}

// TestNoSecretIsTold greps everything a run says, writes and keeps for the secrets of the cluster.
func TestNoSecretIsTold(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, c, "discreet")
	events := filepath.Join(o.dir, "events.jsonl")
	code, out, said := o.run(t.Context(), "--events-file", events, "-v", "6")
	require.Equal(t, cli.CodeOK, code, said)
	_, status, _ := o.migrate(t.Context(), "status", c.ID, "-o", "json")
	_, log, _ := o.migrate(t.Context(), "events", c.ID)
	evidence, err := migrate.LoadEvidence(t.Context(), reader(t), c.Namespace, c.ID)
	require.NoError(t, err)
	file := filepath.Join(o.dir, "bundle.tar.gz")
	code, listed, complaints := o.migrate(t.Context(), "bundle", c.ID, "--out", file, "-o", "json")
	require.Equal(t, cli.CodeOK, code, complaints)
	var bundle struct {
		Path  string
		Files []string
	}
	require.NoError(t, json.Unmarshal([]byte(listed), &bundle))
	assert.Equal(t, file, bundle.Path)
	assert.Subset(t, bundle.Files, []string{"clustermigration.json", "snapshot.tar.gz"})
	packed, err := os.Open(file)
	require.NoError(t, err)
	defer packed.Close() //nolint:errcheck // It was only read.
	inside := unpacked(t, packed)
	require.Contains(t, inside, c.ID+"-encryption", "the snapshot has the Secret, without its value")
	all := strings.Join([]string{out, said, status, log, fmt.Sprintf("%+v", evidence), inside}, "\n")
	for _, secret := range secrets(t, c) {
		assert.NotContains(t, all, secret)
	}
	assert.NotContains(t, all, "PRIVATE KEY")
}

// unpacked is everything in a compressed archive, and in those in it, as one text.
func unpacked(t *testing.T, packed io.Reader) string {
	t.Helper()
	plain, err := gzip.NewReader(packed)
	require.NoError(t, err)
	var all strings.Builder
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		require.NoError(t, err)
		if strings.HasSuffix(header.Name, ".tar.gz") {
			all.WriteString(unpacked(t, archive))
			continue
		}
		content, err := io.ReadAll(archive)
		require.NoError(t, err)
		all.Write(content)
	}
}

// keyMaterial is what nobody may be told of: lines of private keys, also as kubeconfigs have them, tokens of kubeadm and of service accounts, and the key of etcd's content.
var keyMaterial = regexp.MustCompile(`(?s:-----BEGIN [A-Z ]*PRIVATE KEY-----\n(.+?)\n-----END)|client-key-data: (\S{60})|(\b[a-z0-9]{6}\.[a-z0-9]{16}\b)|(eyJ[\w-]{20,}\.[\w-]{20,}\.[\w-]{20,})|secret: (\S{40,})`)

// keyMaterialOf is that of all Secrets in a namespace, as they are and as objects hold it.
func keyMaterialOf(t *testing.T, from client.Client, namespace string) map[string]string {
	t.Helper()
	all := &corev1.SecretList{}
	require.NoError(t, from.List(t.Context(), all, client.InNamespace(namespace)))
	out := map[string]string{}
	for i := range all.Items {
		for key, value := range all.Items[i].Data {
			of := "Secret/" + all.Items[i].Namespace + "/" + all.Items[i].Name + " " + key
			if all.Items[i].Type == "bootstrap.kubernetes.io/token" && key == "token-secret" { // The pattern knows it whole only.
				out[string(value)] = of
			}
			matches := keyMaterial.FindAllStringSubmatch(string(value), -1)
			for _, found := range matches {
				for _, text := range found[1:] {
					// The last line of a key may be short enough to be anybody's.
					for line := range strings.Lines(text) {
						if line = strings.TrimSpace(line); len(line) > 20 {
							out[line] = of
						}
					}
				}
			}
			if held := base64.StdEncoding.EncodeToString(value); len(matches) > 0 && len(held) > 100 {
				out[held[len(held)/2-25:len(held)/2+25]] = of + ", as the object holds it"
			}
		}
	}
	return out
}

// secrets are lines of key material that must not appear anywhere.
func secrets(t *testing.T, c *migrationtest.Cluster) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(string(c.CAKey)) {
		if line = strings.TrimSpace(line); len(line) > 40 && !strings.HasPrefix(line, "-") {
			out = append(out, line)
		}
	}
	secret := &corev1.Secret{}
	require.NoError(t, world.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: c.ID + "-encryption"}, secret))
	require.NotEmpty(t, out)
	// Also as an object holds it.
	return append(out, string(secret.Data["encryption"]), base64.StdEncoding.EncodeToString(secret.Data["encryption"]))
}
