package legacy

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheRealBootDataDecodes(t *testing.T) {
	t.Parallel()
	c := load(t, open(t, fixture("al9qy")), "al9qy")
	master, worker := c.Masters()[0].Ignition, c.Workers()[0].Ignition
	assert.Len(t, master.Files, 58)
	assert.Equal(t, "InitiatorName=iqn.2016-04.com.coreos.iscsi:giantswarm-al9qy-worker-2", strings.TrimSpace(string(worker.File("/etc/iscsi/initiatorname.iscsi").Content)))
	first := master.File("/boot/coreos/first_boot")
	assert.True(t, first.NoSource)
	assert.Empty(t, first.Content)
	key := master.File("/etc/kubernetes/ssl/service-account-key.pem")
	assert.True(t, key.Secret)
	assert.NotZero(t, key.Mode)
	assert.Equal(t, c.Certificates["service-account"].KeyPEM, []byte(strings.TrimSpace(string(key.Content))))
	assert.Contains(t, master.Unit("etcd3.service").Contents, "etcd")
	assert.True(t, *master.Unit("k8s-kubelet.service").Enabled)
	var users []string
	for _, user := range worker.Users {
		users = append(users, user.Name)
	}
	assert.Contains(t, users, "giantswarm")
	assert.Contains(t, users, "joe")
	assert.NotEmpty(t, worker.Directories)

	secret := map[string]bool{}
	for _, n := range c.Nodes {
		for _, file := range n.Ignition.Files {
			if file.Secret {
				secret[file.Path] = true
			}
		}
	}
	assert.Equal(t, map[string]bool{
		"/etc/kubernetes/encryption/k8s-encryption-config.yaml": true, "/root/.docker/config.json": true,
		"/etc/kubernetes/ssl/apiserver-key.pem": true, "/etc/kubernetes/ssl/calico/etcd-key": true, "/etc/kubernetes/ssl/etcd/server-key.pem": true,
		"/etc/kubernetes/ssl/service-account-key.pem": true, "/etc/kubernetes/ssl/worker-key.pem": true,
	}, secret, "kubeconfigs that only name files are no secrets")
	assert.Nil(t, master.File("/nope"))
	assert.Nil(t, (*Ignition)(nil).Unit("nope"))
}

func userData(document string) string { return base64.StdEncoding.EncodeToString([]byte(document)) }

func TestFilesOfBootDataDecodeFromEveryForm(t *testing.T) {
	t.Parallel()
	packed, err := packUserData([]byte("zipped"))
	require.NoError(t, err)
	ignition, complaints, err := DecodeIgnition(userData(`{"ignition":{"version":"2.3.0"},"storage":{"files":[
		{"path":"/plain","mode":420,"user":{"name":"u"},"group":{"name":"g"},"append":true,"contents":{"source":"data:,a%20b"}},
		{"path":"/base64","contents":{"source":"data:;base64,YSBi"}},
		{"path":"/escaped","contents":{"source":"data:text/plain;base64,YSBi%0A"}},
		{"path":"/empty","contents":{"source":"data:,"}},
		{"path":"/none","contents":{}},
		{"path":"/zipped","contents":{"source":"data:;base64,`+packed+`","compression":"gzip"}},
		{"path":"/bundle.pem","contents":{"source":"data:,-----BEGIN%20EC%20PRIVATE%20KEY-----"}}
	]},"systemd":{"units":[{"name":"a","enable":true},{"name":"b","enabled":false,"mask":true,"dropins":[{"name":"d","contents":"x"}]},{"name":"c"}]},
	"passwd":{"users":[{"name":"n","uid":1000,"groups":["sudo"],"shell":"/bin/sh","sshAuthorizedKeys":["k"]}]}}`), 0)
	require.NoError(t, err)
	assert.Empty(t, complaints)
	contents := map[string]string{}
	for _, file := range ignition.Files {
		contents[file.Path] = string(file.Content)
	}
	assert.Equal(t, map[string]string{"/plain": "a b", "/base64": "a b", "/escaped": "a b", "/empty": "", "/none": "", "/zipped": "zipped", "/bundle.pem": "-----BEGIN EC PRIVATE KEY-----"}, contents)
	assert.Equal(t, IgnitionFile{Path: "/plain", Mode: 0o644, User: "u", Group: "g", Append: true, Content: []byte("a b")}, ignition.Files[0])
	assert.False(t, ignition.File("/empty").NoSource, "empty is not the same as absent")
	assert.True(t, ignition.File("/none").NoSource)
	assert.True(t, ignition.File("/bundle.pem").Secret)
	assert.True(t, *ignition.Units[0].Enabled)
	assert.False(t, *ignition.Units[1].Enabled)
	assert.True(t, ignition.Units[1].Mask)
	assert.Nil(t, ignition.Units[2].Enabled)
	assert.Equal(t, 1000, *ignition.Users[0].UID)
}

func TestWhatIsWrongInsideBootDataIsNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ document, complaint string }{
		"a mode that is text":     {`{"ignition":{"version":"2.2.0"},"storage":{"files":[{"path":"/a","mode":"rw"}]}}`, "storage.files[0].mode: expected a whole number"},
		"a broken data URL":       {`{"ignition":{"version":"2.2.0"},"storage":{"files":[{"path":"/a","contents":{"source":"data:;base64,###"}}]}}`, "/a: data URL with invalid base64"},
		"a data URL with a hole":  {`{"ignition":{"version":"2.2.0"},"storage":{"files":[{"path":"/a","contents":{"source":"data:x"}}]}}`, "without a comma"},
		"contents from elsewhere": {`{"ignition":{"version":"2.2.0"},"storage":{"files":[{"path":"/a","contents":{"source":"https://u:secret@host/a?token=b"}}]}}`, "fetched from https://host/a"},
		"an unknown version":      {`{"ignition":{"version":"3.0.0"}}`, `"3.0.0" is not 2.x`},
		"a broken gzip file":      {`{"ignition":{"version":"2.2.0"},"storage":{"files":[{"path":"/a","contents":{"source":"data:,x","compression":"gzip"}}]}}`, "undoing gzip"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ignition, complaints, err := DecodeIgnition(userData(c.document), 0)
			require.NoError(t, err)
			require.NotNil(t, ignition)
			require.Len(t, complaints, 1)
			assert.Contains(t, complaints[0], c.complaint)
			assert.NotContains(t, complaints[0], "secret")
		})
	}
}

func TestBootDataThatIsNoneIsAnError(t *testing.T) {
	t.Parallel()
	bomb, err := packUserData([]byte(`{"a":"` + strings.Repeat("a", 3*mebibyte) + `"}`))
	require.NoError(t, err)
	packed, err := packUserData([]byte(`{}`))
	require.NoError(t, err)
	for name, text := range map[string]string{
		"empty": "", "not base64": "#", "not JSON": userData("hello"), "a list": userData("[]"), "cut gzip": packed[:len(packed)-12] + "====", "a gzip bomb": bomb,
		"deep": userData(strings.Repeat(`{"a":`, 1000)), "too long": strings.Repeat("a", 3*mebibyte),
	} {
		_, _, err := DecodeIgnition(text, mebibyte)
		require.Error(t, err, name)
	}
	_, _, err = DecodeIgnition(bomb, mebibyte)
	assert.ErrorIs(t, err, errTooMuch)
}

func FuzzDecodeIgnition(f *testing.F) {
	f.Add(userData(`{"ignition":{"version":"2.2.0"},"storage":{"files":[{"path":"/a","contents":{"source":"data:,a"}}],"directories":[{"path":"/d"}]},"systemd":{"units":[{"name":"u"}]},"passwd":{"users":[{"name":"n","uid":1}]}}`))
	f.Add(`{"ignition":{"version":2},"storage":{"files":[null,1,{"contents":null}]},"systemd":{"units":null}}`)
	if packed, err := packUserData([]byte(`{"ignition":{"version":"2.2.0"},"storage":{"files":[{"path":"/k-key","contents":{"source":"data:,-----BEGIN PRIVATE KEY-----"}}]}}`)); err == nil {
		f.Add(packed)
	}
	f.Add("H4sIAAAA")
	f.Fuzz(func(t *testing.T, text string) {
		const limit = 1 << 20
		ignition, _, err := DecodeIgnition(text, limit)
		if err == nil {
			size := 0
			for _, file := range ignition.Files {
				size += len(file.Content)
			}
			assert.LessOrEqual(t, size, limit)
		}
		// Whatever it is, redacting it ends, shows no key, and has nothing left to do the second time.
		r := newRedactor(newDigester("id", []byte("key")))
		once := r.userData(text)
		assert.Equal(t, once, r.userData(once))
	})
}

func FuzzLoadSnapshot(f *testing.F) {
	f.Add([]byte(minimalConfig), "a.yaml")
	f.Add([]byte(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"ab1cd","labels":{"app":"master","node":"m0001","cluster":"ab1cd"}}}]}`), "b.json")
	f.Add([]byte("apiVersion: v1\nkind: Secret\nmetadata: {name: x, namespace: default, labels: {clusterID: ab1cd, clusterComponent: api}}\ndata: {ca: YQ==, crt: 1, key: '?'}\n"), "c")
	f.Add([]byte("apiVersion: networking.k8s.io/v1beta1\nkind: Ingress\nmetadata: {name: x, namespace: ab1cd}\nspec: {backend: {serviceName: 1}, rules: [{http: {paths: [{backend: {servicePort: a}}]}}]}\n"), "workload-cluster/x.yml")
	f.Add([]byte("a: &a [x]\nb: *a\n--- !!set {? a}\n"), "d.yaml")
	f.Add([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: master-ab1cd-m0001, namespace: ab1cd}\ndata: {user_data: e30=}\n"), "e.yaml")
	for _, name := range []string{"broken/truncated.yaml", "broken/wrong-kind.yaml", "broken/list-with-hole.json", "broken/not-utf8.yaml", "fixtures/al9qy/input/kvmconfig.yaml"} {
		content, err := os.ReadFile(filepath.Join(testdata, name))
		require.NoError(f, err)
		f.Add(content, filepath.Base(name))
	}
	f.Fuzz(func(t *testing.T, content []byte, name string) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "kvmconfig.yaml"), []byte(minimalConfig), 0o600))
		if name = filepath.Clean(name); !filepath.IsLocal(name) || strings.ContainsRune(name, 0) || os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700) != nil ||
			os.WriteFile(filepath.Join(dir, name), content, 0o600) != nil {
			name = "x.yaml"
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
		}
		source := open(t, dir)
		ids, err := source.IDs(t.Context())
		require.NoError(t, err)
		for _, id := range ids {
			c, err := source.Load(t.Context(), id)
			require.NoError(t, err)
			for _, p := range c.Problems {
				assert.Equal(t, printable(p.Message), p.Message)
			}
		}
		_, err = source.Fleet(t.Context())
		require.NoError(t, err)
		one, two := filepath.Join(t.TempDir(), "s"), filepath.Join(t.TempDir(), "s")
		require.NoError(t, WriteSnapshot(t.Context(), source, nil, one, SnapshotOptions{}))
		require.NoError(t, WriteSnapshot(t.Context(), open(t, one), nil, two, SnapshotOptions{}))
		first, second := tree(t, one), tree(t, two)
		for file, text := range first {
			if file != SnapshotMarker {
				require.Equal(t, text, second[file], file)
			}
		}
	})
}

func FuzzOpenArchive(f *testing.F) {
	for _, name := range []string{"truncated.tar.gz", "traversal.tar"} {
		content, err := os.ReadFile(filepath.Join(testdata, "broken", name))
		require.NoError(f, err)
		f.Add(content)
	}
	f.Add([]byte("\x1f\x8b\x08"))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		name := filepath.Join(dir, "a.tar.gz")
		require.NoError(t, os.WriteFile(name, content, 0o600))
		source, err := Open(t.Context(), name, Options{MaxArchiveBytes: mebibyte, MaxFileBytes: mebibyte})
		if err != nil {
			return
		}
		ids, err := source.IDs(t.Context())
		require.NoError(t, err)
		for _, id := range ids {
			_, err := source.Load(t.Context(), id)
			require.NoError(t, err)
		}
		_, err = source.Fleet(t.Context())
		require.NoError(t, err)
		require.NoError(t, source.Close())
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 1, "nothing is unpacked beside the archive")
	})
}
