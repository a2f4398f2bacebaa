package docs

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
)

func unattended(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "unattended", name))
	require.NoError(t, err)
	return string(text)
}

// manifests reads a file strictly, with the types that Kubernetes itself has: a field that does not exist is an error.
func manifests(t *testing.T, name string) []runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	strict := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yamlutil.NewYAMLReader(bufio.NewReader(strings.NewReader(unattended(t, name))))
	var out []runtime.Object
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		object, _, err := strict.Decode(document, nil, nil)
		require.NoError(t, err, "%s: %s", name, document)
		out = append(out, object)
	}
}

// flagsOfRun are the flags that migrate run has.
func flagsOfRun(t *testing.T) []string {
	t.Helper()
	var out, complaints bytes.Buffer
	require.Equal(t, cli.CodeOK, cli.Run(t.Context(), cli.App{Out: &out, Err: &complaints}, []string{"run", "--help"}), complaints.String())
	var flags []string
	for _, match := range regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z-]+)`).FindAllStringSubmatch(out.String(), -1) {
		flags = append(flags, match[1])
	}
	require.NotEmpty(t, flags)
	return flags
}

func assertFlags(t *testing.T, words []string) {
	t.Helper()
	known := flagsOfRun(t)
	require.Equal(t, "run", words[0])
	for _, word := range words {
		if name, _, _ := strings.Cut(word, "="); strings.HasPrefix(name, "--") {
			assert.Contains(t, known, name)
		}
	}
	assert.Contains(t, strings.Join(words, " "), "--yes", "nobody can be asked")
}

func TestTheCronJobIsOneThatKubernetesTakes(t *testing.T) {
	t.Parallel()
	objects := manifests(t, "cronjob.yaml")
	require.Len(t, objects, 1)
	job, ok := objects[0].(*batchv1.CronJob)
	require.True(t, ok)
	assert.Equal(t, batchv1.ForbidConcurrent, job.Spec.ConcurrencyPolicy)
	pod := job.Spec.JobTemplate.Spec.Template.Spec
	assertFlags(t, pod.Containers[0].Args)
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	for _, m := range pod.Containers[0].VolumeMounts {
		assert.True(t, volumes[m.Name], m.Name)
	}
	var bound bool
	for _, object := range manifests(t, "rbac.yaml") {
		if binding, ok := object.(*rbacv1.ClusterRoleBinding); ok {
			bound = binding.Subjects[0].Name == pod.ServiceAccountName && binding.Subjects[0].Namespace == job.Namespace
		}
		if role, ok := object.(*rbacv1.ClusterRole); ok {
			assert.False(t, slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				// What lies in a legacy namespace is of any kind, and is listed before the namespace goes.
				return slices.Contains(r.APIGroups, "*") && !slices.Equal(r.Verbs, []string{"list"}) || slices.Contains(r.Verbs, "*")
			}), "nothing but lists is given that nobody named")
		}
	}
	assert.True(t, bound, "the role is that of the job's account")
}

func TestTheUnitsAreOnesThatSystemdTakes(t *testing.T) {
	t.Parallel()
	service := unattended(t, "migrate@.service")
	line := regexp.MustCompile(`(?m)^ExecStart=\S+ (.*)$`).FindStringSubmatch(service)
	require.NotNil(t, line)
	assertFlags(t, strings.Fields(line[1]))
	ends := regexp.MustCompile(`(?m)^SuccessExitStatus=(.*)$`).FindStringSubmatch(service)
	require.NotNil(t, ends)
	assert.Equal(t, []string{strconv.Itoa(int(cli.CodeBlocked)), strconv.Itoa(int(cli.CodeWaiting))}, strings.Fields(ends[1]))

	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	// It wants the program to be there, and units under the names they would have.
	dir := t.TempDir()
	for _, name := range []string{"migrate@.service", "migrate@.timer"} {
		text := strings.ReplaceAll(unattended(t, name), "/usr/local/bin/migrate", "/bin/true")
		require.NoError(t, os.WriteFile(filepath.Join(dir, strings.Replace(name, "@.", "@al9qy.", 1)), []byte(text), 0o600))
	}
	said, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", filepath.Join(dir, "migrate@al9qy.service"), filepath.Join(dir, "migrate@al9qy.timer")).CombinedOutput()
	require.NoError(t, err, string(said))
}

// TestExitCodesOfTimersExist: the page names codes by number, and every code of a run is on it.
func TestExitCodesOfTimersExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs", "unattended.md"))
	require.NoError(t, err)
	known := map[string]bool{}
	for _, code := range cli.Codes() {
		known[strconv.Itoa(int(code.Code))] = true
	}
	named := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([0-9, ]+) \|`).FindAllStringSubmatch(string(text), -1) {
		for code := range strings.SplitSeq(row[1], ", ") {
			assert.True(t, known[code], code)
			named[code] = true
		}
	}
	for _, code := range []cli.Code{cli.CodeOK, cli.CodeError, cli.CodeBlocked, cli.CodeWaiting, cli.CodeStopped, cli.CodeDecision, cli.CodeUsage, cli.CodeInterrupted} {
		assert.True(t, named[strconv.Itoa(int(code))], "exit code %d is not explained", code)
	}
}
