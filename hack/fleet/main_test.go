package main

import (
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/fixtures/edit"
)

const fixtures = "../../testdata/fixtures"

// traces are texts of the recordings that no generated cluster may contain.
func traces(t *testing.T) []string {
	t.Helper()
	found := []string{"acme", "Acme", "globex", "Globex"}
	for _, id := range []string{"al9qy", "b4n9x"} {
		found = append(found, id)
		set, err := edit.Load(filepath.Join(fixtures, id, "input"))
		require.NoError(t, err)
		set.Each(func(path string, object edit.Object) {
			if strings.HasPrefix(path, "workload-cluster/") && path != "workload-cluster/nodes.yaml" {
				return
			}
			if path != "release.yaml" {
				found = append(found, edit.Text(object, "metadata", "uid"))
			}
			if edit.Text(object, "kind") == "Pod" {
				found = append(found, edit.Text(object, "metadata", "name"), edit.Text(object, "metadata", "labels", "node"),
					edit.Text(object, "metadata", "labels", "pod-template-hash"), `"`+edit.Text(object, "metadata", "annotations", "endpoint.kvm.giantswarm.io/ip")+`"`)
				for _, status := range edit.Maps(object, "status", "containerStatuses") {
					found = append(found, edit.Text(status, "containerID"))
				}
			}
		})
	}
	return append(found, "23011", "47011", "23023", "47023", "172.23.11.", "172.23.23.")
}

var base64Run = regexp.MustCompile(`[A-Za-z0-9+/_-]{16,}={0,2}`)

// explode decodes everything that is encoded inside a text, at any depth, and returns the readable rest and what was inside.
func explode(text string) []string {
	readable := []string{base64Run.ReplaceAllStringFunc(text, func(run string) string {
		if strings.Contains(run, "-") { // Names with dashes look like base64, and encoded data of ours has none.
			return run
		}
		return "…"
	})}
	for _, run := range base64Run.FindAllString(text, -1) {
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding} {
			content, err := encoding.DecodeString(run)
			if err != nil {
				continue
			}
			if reader, err := gzip.NewReader(bytes.NewReader(content)); err == nil {
				if content, err = io.ReadAll(reader); err != nil {
					continue
				}
			}
			if isText(content) {
				readable = append(readable, explode(string(content))...)
			}
			break
		}
	}
	return readable
}

func isText(content []byte) bool {
	for _, b := range content {
		if b < ' ' && b != '\n' && b != '\t' && b != '\r' || b > 126 {
			return false
		}
	}
	return true
}

// generateFleet writes a fleet and returns its directory and what was printed.
func generateFleet(t *testing.T, bases []*recording, args ...string) (directory, output string) {
	t.Helper()
	directory = filepath.Join(t.TempDir(), "fleet")
	var out, errs bytes.Buffer
	o, err := parse(append([]string{"-base", fixtures, "-o", directory}, args...), &errs)
	require.NoError(t, err, errs.String())
	require.NoError(t, produce(o, bases, &out))
	return directory, out.String()
}

// TestFleet compiles the recordings once for all its parts.
func TestFleet(t *testing.T) {
	t.Parallel()
	bases, err := loadRecordings(fixtures)
	require.NoError(t, err)
	for name, test := range map[string]func(*testing.T, []*recording){
		"no trace of the recordings and certificates verify": noTraceOfTheRecordingsAndCertificatesVerify,
		"references inside a cluster hold":                   referencesInsideAClusterHold,
		"every twentieth cluster has a defect":               everyTwentiethClusterHasADefect,
		"one large cluster for benchmarks":                   oneLargeClusterForBenchmarks,
		"same flags give the same fleet":                     sameFlagsGiveTheSameFleet,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, bases)
		})
	}
}

// readCluster returns the objects of a cluster by path of the list.
func readCluster(t *testing.T, directory string) map[string][]edit.Object {
	t.Helper()
	lists := map[string][]edit.Object{}
	for _, file := range filesBelow(t, directory) {
		if filepath.Ext(file) != ".json" {
			continue
		}
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		var list struct {
			Kind  string        `json:"kind"`
			Items []edit.Object `json:"items"`
		}
		require.NoError(t, json.Unmarshal(content, &list), file)
		assert.Equal(t, "List", list.Kind)
		assert.Equal(t, len(list.Items)+2, strings.Count(string(content), "\n"), "%s has one item per line", file)
		relative, err := filepath.Rel(directory, file)
		require.NoError(t, err)
		lists[relative] = list.Items
	}
	return lists
}

func filesBelow(t *testing.T, directory string) []string {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, path)
		}
		return err
	}))
	return files
}

func noTraceOfTheRecordingsAndCertificatesVerify(t *testing.T, bases []*recording) {
	t.Helper()
	directory, _ := generateFleet(t, bases, "-n", "2", "-workers", "4")
	forbidden := traces(t)
	entries, err := os.ReadDir(directory)
	require.NoError(t, err)
	for _, entry := range entries {
		if entry.Name() == "management-cluster" {
			continue
		}
		caPEM, err := os.ReadFile(filepath.Join(directory, entry.Name(), "ca", "ca.crt"))
		require.NoError(t, err)
		roots := x509.NewCertPool()
		require.True(t, roots.AppendCertsFromPEM(caPEM))
		certificates, decoded := 0, 0
		for _, file := range filesBelow(t, filepath.Join(directory, entry.Name())) {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			for depth, text := range explode(string(content)) {
				if depth > 0 {
					decoded++
				}
				for _, trace := range forbidden {
					if at := strings.Index(text, trace); at >= 0 {
						assert.Failf(t, "trace", "%s at depth %d: %q in …%s…", file, depth, trace, text[max(0, at-60):min(len(text), at+60)])
					}
				}
			}
			for _, text := range pemTexts(string(content)) {
				block, _ := pem.Decode([]byte(text))
				require.NotNil(t, block)
				certificate, err := x509.ParseCertificate(block.Bytes)
				require.NoError(t, err)
				if certificate.Subject.CommonName == "mc-ca" {
					continue
				}
				certificates++
				for _, trace := range forbidden[4:] {
					assert.NotContains(t, string(certificate.Raw), trace)
				}
				_, err = certificate.Verify(x509.VerifyOptions{
					Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
					CurrentTime: time.Date(2026, time.December, 24, 0, 0, 0, 0, time.UTC),
				})
				require.NoError(t, err, "%s in %s", certificate.Subject, file)
				assert.Contains(t, certificate.Subject.CommonName, entry.Name())
			}
		}
		assert.Greater(t, certificates, 20)
		assert.Greater(t, decoded, 50)
	}
}

// pemTexts finds certificates at any depth.
func pemTexts(text string) []string {
	var found []string
	pattern := regexp.MustCompile(`(?s)-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----`)
	for _, run := range append([]string{text}, decodedRuns(text)...) {
		found = append(found, pattern.FindAllString(strings.ReplaceAll(run, `\n`, "\n"), -1)...)
	}
	return found
}

func decodedRuns(text string) []string {
	var texts []string
	for _, run := range regexp.MustCompile(`[A-Za-z0-9+/]{40,}={0,2}`).FindAllString(text, -1) {
		content, err := base64.StdEncoding.DecodeString(run)
		if err != nil {
			continue
		}
		if reader, err := gzip.NewReader(bytes.NewReader(content)); err == nil {
			if content, err = io.ReadAll(reader); err != nil {
				continue
			}
		}
		if isText(content) {
			texts = append(texts, string(content))
			if !strings.HasPrefix(string(content), "-----BEGIN") {
				texts = append(texts, decodedRuns(string(content))...)
			}
		}
	}
	return texts
}

func referencesInsideAClusterHold(t *testing.T, bases []*recording) {
	t.Helper()
	directory, _ := generateFleet(t, bases, "-n", "21", "-nodes", "3..4")
	uids := map[string]string{}
	ports := map[any]string{}
	entries, err := os.ReadDir(directory)
	require.NoError(t, err)
	require.Len(t, entries, 22)
	for _, entry := range entries {
		id := entry.Name()
		if id == "management-cluster" {
			continue
		}
		lists := readCluster(t, filepath.Join(directory, id))
		for file, objects := range lists {
			for _, object := range objects {
				uid := edit.Text(object, "metadata", "uid")
				require.Regexp(t, uidPattern, uid)
				assert.Empty(t, uids[uid], "uid of %s in %s is taken", edit.Describe(object), file)
				uids[uid] = edit.Describe(object)
			}
		}
		for _, objects := range lists {
			for _, object := range objects {
				for _, owner := range edit.Maps(object, "metadata", "ownerReferences") {
					assert.Equal(t, edit.Text(owner, "kind")+"/"+edit.Text(owner, "name"), uids[edit.Text(owner, "uid")])
				}
				if claim := edit.Text(object, "spec", "claimRef", "uid"); claim != "" {
					assert.Equal(t, "PersistentVolumeClaim/"+edit.Text(object, "spec", "claimRef", "name"), uids[claim])
				}
			}
		}
		config := lists["kvmconfigs.json"][0]
		masters, workers := edit.Maps(config, "spec", "cluster", "masters"), edit.Maps(config, "spec", "cluster", "workers")
		nodes := len(masters) + len(workers)
		assert.Len(t, edit.List(config, "spec", "kvm", "workers"), len(workers))
		assert.Len(t, edit.List(config, "status", "cluster", "nodes"), nodes)
		for _, file := range []string{"deployments.json", "replicasets.json", "pods.json", "workload-cluster/nodes.json"} {
			assert.Len(t, lists[file], nodes, file)
		}
		taken := map[string]bool{}
		for _, pod := range lists["pods.json"] {
			assert.Equal(t, id, edit.Text(pod, "metadata", "namespace"))
			name := edit.Text(pod, "spec", "nodeName")
			assert.False(t, taken[name], "one VM of a cluster per host")
			taken[name] = true
		}
		for _, service := range lists["services.json"] {
			for _, port := range edit.Maps(service, "spec", "ports") {
				if number := port["nodePort"]; number != nil {
					assert.Empty(t, ports[number], "node port is taken")
					ports[number] = id
				}
			}
		}
		for _, name := range []string{"master-" + id + "-" + edit.Text(masters[0], "id"), "worker-" + id + "-" + edit.Text(workers[0], "id")} {
			found := false
			for _, configMap := range lists["configmaps.json"] {
				if edit.Text(configMap, "metadata", "name") != name {
					continue
				}
				found = true
				ignition, err := edit.DecodeIgnition(edit.Text(configMap, "data", "user_data"))
				require.NoError(t, err)
				_, content, err := edit.IgnitionFile(ignition, "/etc/iscsi/initiatorname.iscsi")
				require.NoError(t, err)
				role, _, _ := strings.Cut(name, "-")
				assert.Contains(t, content, "giantswarm-"+id+"-"+role+"-")
			}
			assert.True(t, found, name)
		}
	}
	hosts := readCluster(t, filepath.Join(directory, "management-cluster"))
	assert.GreaterOrEqual(t, len(hosts["nodes.json"]), 19)
	data, ok := edit.At(hosts["storageconfigs.json"][0], "spec", "storage", "data").(map[string]any)
	require.True(t, ok)
	assert.Len(t, data, 4*21)
}

func everyTwentiethClusterHasADefect(t *testing.T, bases []*recording) {
	t.Helper()
	clusters := planFleet(options{clusters: 60, workers: 2}, bases)
	h, err := planHosts(clusters)
	require.NoError(t, err)
	directory := t.TempDir()
	found := map[defect]string{}
	for _, c := range clusters {
		if c.defect != healthy {
			found[c.defect] = c.id
			require.NoError(t, writeCluster(filepath.Join(directory, c.id), c, h))
		}
	}
	require.Len(t, found, 3)

	lists := readCluster(t, filepath.Join(directory, found[missingEncryption]))
	assert.Len(t, lists["secrets.json"], 13, "ten certificates, kubeconfig and two tokens")

	lists = readCluster(t, filepath.Join(directory, found[silentWorker]))
	for _, endpoints := range lists["endpoints.json"] {
		if edit.Text(endpoints, "metadata", "name") == "worker" {
			subset := edit.Maps(endpoints, "subsets")[0]
			assert.Len(t, edit.List(subset, "addresses"), 1)
			assert.Len(t, edit.List(subset, "notReadyAddresses"), 1)
		}
	}
	unknown := 0
	for _, node := range lists["workload-cluster/nodes.json"] {
		for _, condition := range edit.Maps(node, "status", "conditions") {
			if condition["type"] == "Ready" && condition["status"] == "Unknown" {
				unknown++
			}
		}
	}
	assert.Equal(t, 1, unknown)

	lists = readCluster(t, filepath.Join(directory, found[twoMasters]))
	assert.Len(t, edit.List(lists["kvmconfigs.json"][0], "spec", "cluster", "masters"), 2)
	assert.Len(t, lists["pods.json"], 4)
}

func oneLargeClusterForBenchmarks(t *testing.T, bases []*recording) {
	t.Helper()
	directory, output := generateFleet(t, bases, "-n", "1", "-workers", "14")
	assert.Contains(t, output, "1 clusters with 15 nodes")
	entries, err := os.ReadDir(directory)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	for _, file := range filesBelow(t, directory) {
		info, err := os.Stat(file)
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), file)
	}
	info, err := os.Stat(directory)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
}

func sameFlagsGiveTheSameFleet(t *testing.T, bases []*recording) {
	t.Helper()
	first, _ := generateFleet(t, bases, "-n", "3", "-nodes", "3..4")
	second, _ := generateFleet(t, bases, "-n", "3", "-nodes", "3..4")
	for _, file := range filesBelow(t, first) {
		relative, err := filepath.Rel(first, file)
		require.NoError(t, err)
		one, err := os.ReadFile(file)
		require.NoError(t, err)
		other, err := os.ReadFile(filepath.Join(second, relative))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(one, other), relative)
	}
}

func TestBadFlagsAreRefused(t *testing.T) {
	t.Parallel()
	full := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "kept"), nil, 0o600))
	for message, args := range map[string][]string{
		"-o is missing":            {},
		"unexpected argument":      {"-o", full, "more"},
		"want 1 to 2048 clusters":  {"-o", full, "-n", "0"},
		"want two numbers":         {"-o", full, "-nodes", "many"},
		"want at least 2":          {"-o", full, "-nodes", "1..3"},
		"positive number":          {"-o", full, "-workers", "-1"},
		"is not empty":             {"-base", fixtures, "-o", full, "-n", "1"},
		"one per host":             {"-base", fixtures, "-o", full, "-n", "1", "-workers", "600"},
		"reading objects below no": {"-base", "nowhere", "-o", full},
	} {
		assert.ErrorContains(t, run(args, io.Discard, io.Discard), message)
	}
}
