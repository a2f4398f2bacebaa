package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// TestNoSecretIsEverPrinted runs every command in every format over fixtures full of secrets, with the CA's key given, and looks for
// each of them in everything that was written: as it is, in base64, and line by line.
func TestNoSecretIsEverPrinted(t *testing.T) {
	t.Parallel()
	withoutRaces(t)
	for _, name := range []string{"al9qy", "b4n9x", "proxy-and-registry-auth"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := fixture(t, name)
			needles := planted(t, dir)
			require.Greater(t, len(needles), 50, "the fixture's secrets were not found")
			search := searcher(needles)
			look := func(what string, text []byte) {
				t.Helper()
				for _, needle := range search(text) {
					assert.Fail(t, "a secret was printed", "%s shows %s", what, needles[needle])
				}
			}
			work := t.TempDir()
			ca := []string{"--ca-cert", filepath.Join(dir, "ca", "ca.crt"), "--ca-key", filepath.Join(dir, "ca", "ca.key")}
			do := func(args ...string) ran {
				t.Helper()
				got := run(t, append(args, "--log-file", filepath.Join(work, "log"), "-v", "9")...)
				require.NotEqual(t, CodeUsage, got.code, got.stderr)
				look(strings.Join(args[:1], " ")+" stdout "+args[len(args)-1], []byte(got.stdout))
				look(strings.Join(args[:1], " ")+" stderr", []byte(got.stderr))
				return got
			}
			for _, format := range formatsOf("Inventory") {
				do("inventory", "--from", dir, "--full", "-o", format)
			}
			for _, format := range formatsOf("CheckReport") {
				do(append(append([]string{"check", "--from", dir, "--full"}, ca...), "-o", format)...)
			}
			saved := filepath.Join(work, "plan")
			for _, format := range formatsOf("Plan") {
				do(append(append([]string{"plan", "--from", dir, "--full", "--out", saved}, ca...), "-o", format)...)
				do("show", saved, "--full", "-o", format)
			}
			do(append([]string{"plan", "--from", dir, "--against", saved}, ca...)...)
			for _, field := range []string{"spec.cluster.etcd.prefix", "Secret:data.*", "data.key", "spec.kvm.workers[0].hostVolumes[1].mountTag"} {
				for _, format := range []string{"text", "json", "yaml"} {
					do("explain", field, "--from", dir, "-o", format)
				}
			}
			snapshot := filepath.Join(work, "snapshot")
			require.Equal(t, CodeOK, do("snapshot", "--from", dir, "--out", snapshot).code)
			require.Equal(t, CodeOK, do("plan", "--from", snapshot, "-o", "json").code)
			// The search itself must be able to find something.
			open, found := filepath.Join(t.TempDir(), "open"), 0
			require.Equal(t, CodeOK, run(t, "snapshot", "--from", dir, "--out", open, "--include-secrets").code)
			require.NoError(t, filepath.WalkDir(open, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() {
					return err
				}
				data, err := os.ReadFile(path)
				found += len(search(data))
				return err
			}))
			require.Positive(t, found)
			require.NoError(t, filepath.WalkDir(work, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() {
					return err
				}
				data, err := os.ReadFile(path)
				look(strings.TrimPrefix(path, work+"/"), data)
				return err
			}))
		})
	}
}

// TestWhatASnapshotHidesIsHiddenEverywhere plants secrets where only a name or a form gives them away, in fields that are known,
// unknown, dropped and carried over, and looks for them in everything that is written.
func TestWhatASnapshotHidesIsHiddenEverywhere(t *testing.T) {
	t.Parallel()
	withoutRaces(t)
	dir := plantedInFields(t)
	work := t.TempDir()
	do := func(args ...string) ran {
		t.Helper()
		got := run(t, append(args, "--log-file", filepath.Join(work, "log"), "-v", "9")...)
		require.NotEqual(t, CodeUsage, got.code, got.stderr)
		assert.NotRegexp(t, "PLANT[A-Z]*[0-9]+", got.stdout+got.stderr, "%s", args)
		return got
	}
	decisions := filepath.Join(work, "decisions.yaml")
	require.NoError(t, os.WriteFile(decisions, []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Decisions\ndecisions:\n  spec.cluster.registryPassword: drop\n  CertConfig/api:spec.cert.password: drop\n"), 0o600))
	saved := filepath.Join(work, "plan.json")
	for _, format := range formatsOf("Plan") {
		do("plan", "al9qy", "--from", dir, "--full", "--out", saved, "-o", format)
		do("show", saved, "--full", "-o", format)
		do("plan", "al9qy", "--from", dir, "--decisions", decisions, "--against", saved, "--full", "-o", format)
	}
	for _, format := range formatsOf("Inventory") {
		do("inventory", "--from", dir, "--full", "-o", format)
	}
	for _, format := range formatsOf("CheckReport") {
		do("check", "--from", dir, "--full", "-o", format)
	}
	do("explain", "spec.cluster.etcd.prefix", "--from", dir)

	snapshot := filepath.Join(work, "snapshot")
	require.Equal(t, CodeOK, do("snapshot", "--from", dir, "--out", snapshot).code)
	fields := func(args ...string) map[string]string {
		t.Helper()
		var document plan.Plan
		require.NoError(t, json.Unmarshal([]byte(do(append([]string{"plan", "al9qy", "-o", "json"}, args...)...).stdout), &document))
		values := map[string]string{}
		for _, field := range document.Fields {
			values[field.Source+" "+field.Path] = field.Value + " " + string(field.Disposition)
		}
		return values
	}
	open, redacted, decided := fields("--from", dir), fields("--from", snapshot), fields("--from", dir, "--decisions", decisions)
	const password, certificate, proxy = "KVMConfig/default/al9qy spec.cluster.registryPassword", "CertConfig/default/al9qy-api spec.cert.password", "Deployment/al9qy/worker-k3m9a env[HTTP_PROXY]"
	assert.Regexp(t, "^hmac-sha256:[0-9a-f]{32} decide$", open[password])
	assert.Regexp(t, "^hmac-sha256:[0-9a-f]{32} dropped$", decided[password], "a decision is about the field, whatever is shown of it")
	assert.Regexp(t, "^hmac-sha256:[0-9a-f]{32} dropped$", decided[certificate])
	assert.Regexp(t, "^http://user:hmac-sha256:[0-9a-f]{32}@proxy:3128 decide$", open[proxy], "the rest of the address is no secret")
	shape := regexp.MustCompile(`(hmac-sha256:)[0-9a-f]+|\([0-9]+ bytes, sha256 [0-9a-f]+\)`)
	for field, value := range open {
		if strings.Contains(field, " data.") || strings.Contains(field, " file:") {
			continue // a redacted snapshot has no key to make digests anew, and some files as a digest only
		}
		assert.Equal(t, shape.ReplaceAllString(value, "$1"), shape.ReplaceAllString(redacted[field], "$1"), "%s is shown the same from a redacted snapshot", field)
	}
	assert.NoError(t, filepath.WalkDir(work, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		assert.NotRegexp(t, "PLANT[A-Z]*[0-9]+", string(data), strings.TrimPrefix(path, work+"/"))
		return err
	}))
}

// TestAPlanHidesWhatASecretHoldsWhereverItWasPasted looks for ordinary words as well: nothing but the Secret gives them away.
func TestAPlanHidesWhatASecretHoldsWhereverItWasPasted(t *testing.T) {
	t.Parallel()
	encoded := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	const word, sign, short, host = "pasted-secret-value", "P@ss-w0rd", "seventy", "registry.example.test"
	dir := filepath.Join(t.TempDir(), "pasted")
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(fixture(t, "al9qy"), "input"))))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "registry.yaml"), []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: registry, namespace: al9qy, labels: {tier: labelled-word}}\n"+
		"data: {word: "+encoded(word+"\n")+", user: "+encoded("giantswarm")+", format: "+encoded("cloud-config")+", value: "+encoded("#cloud-config\n")+", sign: "+encoded(sign)+", short: "+encoded(short)+", host: "+encoded(host)+", label: "+encoded("labelled-word")+"}\n"), 0o600))
	kept := map[string]string{"NOTE4": short, "NOTE5": host, "NOTE6": "un" + word + "s", "NOTE7": "labelled-word", "NOTE8": "docs.giantswarm.example/giantswarm-x", "NOTE9": "#cloud-config", "NOTE10": "cloud-config"}
	var env strings.Builder
	for name, value := range map[string]string{"NOTE1": word, "NOTE2": "see: " + word + ", and " + sign, "NOTE3": encoded(word)} {
		fmt.Fprintf(&env, "        - name: %s\n          value: '%s'\n", name, value)
	}
	for name, value := range kept {
		fmt.Fprintf(&env, "        - name: %s\n          value: '%s'\n", name, value)
	}
	paste := func(file, behind, text string) {
		data, err := os.ReadFile(filepath.Join(dir, file))
		require.NoError(t, err)
		require.Contains(t, string(data), behind, file)
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(strings.ReplaceAll(string(data), behind, behind+text)), 0o600))
	}
	paste("deployments.yaml", "        env:\n", env.String())
	paste("kvmconfig.yaml", "metadata:\n", "  annotations: {acme/note: "+word+"}\n")
	paste("kvmconfig.yaml", "spec:\n  cluster:\n", "    comment: the word is "+word+"\n")

	for _, format := range formatsOf("Plan") {
		got := run(t, "plan", "al9qy", "--from", dir, "--full", "-o", format)
		require.Equal(t, CodeOK, got.code, got.stderr)
		shown := strings.ReplaceAll(got.stdout, kept["NOTE6"], "")
		for _, secret := range []string{word, sign, encoded(word), encoded(sign)} {
			assert.NotContains(t, shown, secret, format)
		}
	}
	var document plan.Plan
	require.NoError(t, json.Unmarshal([]byte(run(t, "plan", "al9qy", "--from", dir, "-o", "json").stdout), &document))
	values := map[string]string{}
	for _, field := range document.Fields {
		values[strings.TrimSuffix(strings.TrimPrefix(field.Path, "env["), "]")] = field.Value
	}
	for name, value := range kept {
		assert.Equal(t, value, values[name], "%s holds no secret", name)
	}
	assert.Regexp(t, "^see: hmac-sha256:[0-9a-f]{32}, and hmac-sha256:[0-9a-f]{32}$", values["NOTE2"])
}

// plantedInFields copies a fixture and puts secrets into the fields of its objects.
func plantedInFields(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "planted")
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(fixture(t, "al9qy"), "input"))))
	for file, lines := range map[string][][2]string{
		"kvmconfig.yaml": {
			{"metadata:\n", "metadata:\n  annotations:\n    vault-token: PLANTA01\n    acme/db-password: PLANTA02\n" +
				`    acme/config: '{"url": "https://x.example.test", "nested": [{"apiKey": "PLANTA03"}]}'` + "\n" +
				`    kubectl.kubernetes.io/last-applied-configuration: '{"apiVersion":"provider.giantswarm.io/v1alpha1","kind":"KVMConfig","spec":{"cluster":{"token":"PLANTA04"}}}'` + "\n"},
			{"spec:\n  cluster:\n", "spec:\n  cluster:\n    registryPassword: PLANTA05\n    pin: {password: 2718281}\n    tokens: [PLANTA06, PLANTA07]\n    sshPrivateKey: PLANTA08\n" +
				"    mirror: https://user:PLANTA09@mirror.example.test/?token=PLANTA10\n    settings:\n    - {name: DB_PASS, value: PLANTA11}\n    credentials: {value: PLANTA12}\n"},
		},
		"certconfigs.yaml": {{"  cert:\n", "  cert:\n    password: PLANTA13\n"}},
		"deployments.yaml": {
			{"        - name: CORES\n", "        - name: REGISTRY_PASSWORD\n          value: PLANTA17\n        - name: HTTP_PROXY\n          value: http://user:PLANTA18@proxy:3128\n        - name: CORES\n"},
			{"        - update\n", "        - update\n        - --token=PLANTA19\n        - --etcd-password=PLANTA20 with a blank\n        - --secret\n        - PLANTA21\n        - https://PLANTATOKEN22@git.example.test/x?api_key=PLANTA23\n"},
			{"  annotations:\n    deployment", "  annotations:\n    vault-token: PLANTA24\n    deployment"},
		},
		"pods.yaml": {{"    endpoint.kvm.giantswarm.io/drained", "    vault-token: PLANTA25\n    endpoint.kvm.giantswarm.io/drained"}},
	} {
		name := filepath.Join(dir, file)
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		text := string(data)
		for _, line := range lines {
			require.Contains(t, text, line[0], file)
			text = strings.ReplaceAll(text, line[0], line[1])
		}
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	return dir
}

// searcher returns a function that finds any of many texts in one pass: a table by their first bytes.
func searcher(needles map[string]string) func(text []byte) []string {
	const prefix = 12
	table := map[[prefix]byte][]string{}
	for needle := range needles {
		key := [prefix]byte([]byte(needle)[:prefix])
		table[key] = append(table[key], needle)
	}
	return func(text []byte) []string {
		var found []string
		for i := 0; i+prefix <= len(text); i++ {
			for _, needle := range table[[prefix]byte(text[i:i+prefix])] {
				if bytes.HasPrefix(text[i:], []byte(needle)) {
					found = append(found, needle)
				}
			}
		}
		return found
	}
}

// planted returns everything secret of a fixture, with where it was found.
func planted(t *testing.T, dir string) map[string]string {
	t.Helper()
	needles := map[string]string{}
	add := func(text, where string) {
		text = strings.TrimSpace(text)
		if len(text) >= 12 {
			needles[text] = where
			needles[base64.StdEncoding.EncodeToString([]byte(text))] = where + " in base64"
		}
	}
	keyLines := func(text, where string) {
		for _, block := range regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)-----END`).FindAllStringSubmatch(text, -1) {
			for line := range strings.SplitSeq(strings.TrimSpace(block[1]), "\n") {
				add(line, "a line of a private key of "+where)
			}
		}
	}
	key, err := os.ReadFile(filepath.Join(dir, "ca", "ca.key"))
	require.NoError(t, err)
	keyLines(string(key), "ca/ca.key")

	public := regexp.MustCompile(`^(?:ca|crt|ca\.crt|tls\.crt|namespace|cert|.*\.crt|.*ca.*)$`)
	files, err := filepath.Glob(filepath.Join(dir, "input", "*.yaml"))
	require.NoError(t, err)
	for _, file := range files {
		handle, err := os.Open(file)
		require.NoError(t, err)
		for decoder := yaml.NewDecoder(handle); ; {
			var document map[string]any
			err := decoder.Decode(&document)
			if err == io.EOF { //nolint:errorlint // the decoder returns it as it is
				break
			}
			if err != nil {
				break // hostile files are other tests' business
			}
			if document["kind"] != "Secret" {
				continue
			}
			data, err := json.Marshal(document)
			require.NoError(t, err)
			var secret corev1.Secret
			require.NoError(t, sigsyaml.Unmarshal(data, &secret))
			for name, value := range secret.Data {
				where := fmt.Sprintf("%s of Secret %s", name, secret.Name)
				keyLines(string(value), where)
				// A kubeconfig holds its key in base64 once more.
				for _, inner := range regexp.MustCompile(`(?m)(?:client-key-data|token): *"?([A-Za-z0-9+/=._-]{12,})`).FindAllStringSubmatch(string(value), -1) {
					add(inner[1], where)
					if decoded, err := base64.StdEncoding.DecodeString(inner[1]); err == nil {
						keyLines(string(decoded), where)
					}
				}
				if !public.MatchString(name) && !strings.Contains(string(value), "\n") {
					add(string(value), where)
				}
			}
		}
		require.NoError(t, handle.Close())
	}
	for _, value := range ignitionSecrets(t, dir) {
		add(value, "a secret of the boot configuration")
	}
	for _, known := range []string{"s3cr3t-test-only", base64.StdEncoding.EncodeToString([]byte("s3cr3t-test-only"))} {
		needles[known] = "the proxy's password"
	}
	return needles
}

// ignitionSecrets finds encryption keys and registry logins in decoded boot configurations.
func ignitionSecrets(t *testing.T, dir string) []string {
	t.Helper()
	source, err := legacy.Open(t.Context(), filepath.Join(dir, "input"), legacy.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, source.Close()) }()
	ids, err := source.IDs(t.Context())
	require.NoError(t, err)
	patterns := []*regexp.Regexp{
		regexp.MustCompile(`secret: *"?([A-Za-z0-9+/=]{16,})`), regexp.MustCompile(`"auth": *"([^"]{8,})"`), regexp.MustCompile(`[a-z]+://([^\s/"@]+:[^\s/"@]+)@`),
	}
	var found []string
	for _, id := range ids {
		cluster, err := source.Load(t.Context(), id)
		require.NoError(t, err)
		for _, node := range cluster.Nodes {
			if node.Ignition == nil {
				continue
			}
			texts := []string{}
			for _, file := range node.Ignition.Files {
				texts = append(texts, string(file.Content))
			}
			for _, unit := range node.Ignition.Units {
				texts = append(texts, unit.Contents)
				for _, dropin := range unit.Dropins {
					texts = append(texts, dropin.Contents)
				}
			}
			for _, text := range texts {
				for _, pattern := range patterns {
					for _, match := range pattern.FindAllStringSubmatch(text, -1) {
						found = append(found, match[1])
					}
				}
				for _, block := range regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)-----END`).FindAllStringSubmatch(text, -1) {
					found = append(found, strings.Split(strings.TrimSpace(block[1]), "\n")...)
				}
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}
