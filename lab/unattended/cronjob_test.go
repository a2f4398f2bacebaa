package unattended

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mctest"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/seed"
)

const (
	id = "al9qy"
	// programEnv makes the test binary the program of the image in the CronJob.
	programEnv = "UNATTENDED_MIGRATE"
	image      = "ghcr.io/giantswarm/migrate"
	patience   = 5 * time.Minute
)

var cluster *mc.Cluster //nolint:gochecknoglobals // set once by TestMain, as the testing package wants it.

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		cli.PrepareProcess()
		os.Exit(int(cli.Run(context.Background(), cli.App{
			In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ(), Version: cli.Version{Version: "v0.0.0-test"},
		}, os.Args[1:])))
	}
	self, err := os.Executable()
	if err == nil {
		err = labnet.Check()
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "skipped:", err)
		return
	}
	os.Exit(mctest.Main(m, mc.Options{
		Hosts: 1, CRDDirs: []string{filepath.Join("..", "..", "config", "crd", "bases"), filepath.Join("..", "..", "testdata", "management-cluster", "crds.yaml")},
		Images: map[string]mc.Image{image: {Program: self, Path: "/migrate", Env: map[string]string{programEnv: "1"}}},
	}, func(c *mc.Cluster) { cluster = c }))
}

// playbook has a window that is over: nothing could begin.
const playbook = `apiVersion: migration.giantswarm.io/v1alpha1
kind: Playbook
metadata: {name: over}
spec:
  windows:
    timeZone: Europe/Berlin
    open: [{name: once, from: 2026-01-05T20:00, to: 2026-01-06T04:00}]
    phases: [fence, translate, adopt, control-plane, workers, finalize]
  decisions: [{field: spec.cluster.docker.daemon.cidr, value: drop, reason: CHG-4711}]
`

// TestTheCronJobRuns with the rights, volumes and settings of docs/unattended, from a Job made the way kubectl create job --from=cronjob makes one.
func TestTheCronJobRuns(t *testing.T) {
	if cluster == nil {
		t.Skip("needs a cluster, and there is none with -short")
	}
	scheme := runtime.NewScheme()
	require.NoError(t, batchv1.AddToScheme(scheme))
	require.NoError(t, corev1.AddToScheme(scheme))
	c, err := client.New(cluster.Config(), client.Options{Scheme: scheme})
	require.NoError(t, err)
	load(t)

	rights(t, c)
	objects, err := manifest.ReadFile(filepath.Join("..", "..", "docs", "unattended", "cronjob.yaml"))
	require.NoError(t, err)
	for _, o := range objects {
		require.NoError(t, c.Create(t.Context(), o), manifest.Describe(o))
	}
	require.NoError(t, c.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "migrate", Name: "migrate-" + id}, Data: map[string]string{"playbook.yaml": playbook},
	}))
	require.NoError(t, c.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "migrate", Name: "migrate-" + id},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new("lab-local"),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}))
	cron := &batchv1.CronJob{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "migrate", Name: "migrate-" + id}, cron))
	require.NoError(t, c.Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "migrate", Name: "by-hand"}, Spec: cron.Spec.JobTemplate.Spec}))

	pod := ended(t, c)
	log := logOf(t, pod)
	state := pod.Status.ContainerStatuses[0].State.Terminated
	// The recorded cluster does not run, and its CA key is not given: the checks say so, after having looked at everything.
	assert.Equal(t, int32(cli.CodeBlocked), state.ExitCode, log)
	assert.Contains(t, log, "Nothing was written. migrate check "+id+" --playbook /etc/migrate/playbook.yaml says more.")
	assert.NotContains(t, log, "forbidden", "the rights are enough")
}

// load brings the recorded cluster into the lab; once is enough.
func load(t *testing.T) {
	t.Helper()
	config := &unstructured.Unstructured{}
	config.SetAPIVersion("provider.giantswarm.io/v1alpha1")
	config.SetKind("KVMConfig")
	c, err := client.New(cluster.Config(), client.Options{})
	require.NoError(t, err)
	err = c.Get(t.Context(), client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: id}, config)
	if err == nil {
		return
	}
	require.True(t, apierrors.IsNotFound(err), err)
	_, err = seed.Load(t.Context(), cluster.Config(), []string{recorded(t)},
		seed.Options{Clusters: []string{id}, ControllerManager: true, SkipServiceAccountTokens: true})
	require.NoError(t, err)
}

// recorded is a copy of the recorded cluster and its surroundings, without what this lab has of its own: Nodes, storage, and addresses of Services.
func recorded(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, from := range []string{"management-cluster", filepath.Join("fixtures", id, "input")} {
		require.NoError(t, os.CopyFS(filepath.Join(dir, from), os.DirFS(filepath.Join("..", "..", "testdata", from))))
	}
	for _, file := range []string{"management-cluster/nodes.yaml", "management-cluster/storageclasses.yaml", "fixtures/" + id + "/input/services.yaml"} {
		require.NoError(t, os.Remove(filepath.Join(dir, file)))
	}
	return dir
}

// ended waits for the Job's pod to end.
func ended(t *testing.T, c client.Client) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	ended := assert.Eventually(t, func() bool {
		pods := &corev1.PodList{}
		if err := c.List(t.Context(), pods, client.InNamespace("migrate"), client.MatchingLabels{"batch.kubernetes.io/job-name": "by-hand"}); err != nil || len(pods.Items) == 0 {
			return false
		}
		pod = &pods.Items[0]
		return len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Terminated != nil
	}, patience, time.Second)
	if !ended && pod != nil {
		t.Log(pod.Status)
	}
	require.True(t, ended)
	return pod
}

func logOf(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	typed, err := kubernetes.NewForConfig(cluster.Config())
	require.NoError(t, err)
	stream, err := typed.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).Stream(t.Context())
	require.NoError(t, err)
	defer func() { _ = stream.Close() }()
	var text strings.Builder
	_, err = io.Copy(&text, stream)
	require.NoError(t, err)
	return text.String()
}
