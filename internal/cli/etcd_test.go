package cli

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
)

// savedEtcd writes a database as etcd saves one; package lab/etcdtest has it from real servers.
func savedEtcd(t *testing.T, keys ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "al9qy.db")
	db, err := bbolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		bucket, err := tx.CreateBucket([]byte("key"))
		require.NoError(t, err)
		for i, key := range keys {
			name, deleted := strings.CutPrefix(key, "-")
			change, err := (&mvccpb.KeyValue{Key: []byte(name)}).Marshal()
			require.NoError(t, err)
			revision := binary.BigEndian.AppendUint64(nil, uint64(i)+2)
			revision = append(revision, '_')
			revision = binary.BigEndian.AppendUint64(revision, 0)
			if deleted {
				revision = append(revision, 't')
			}
			require.NoError(t, bucket.Put(revision, change))
		}
		return nil
	}))
	require.NoError(t, db.Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	sum := sha256.Sum256(content)
	require.NoError(t, os.WriteFile(path, append(content, sum[:]...), 0o600))
	return path
}

func TestASavedEtcdIsVerified(t *testing.T) {
	t.Parallel()
	const prefix = "/giantswarm.io"
	path := savedEtcd(t, prefix+"/secrets/a", prefix+"/pods/b", "-"+prefix+"/pods/b", prefix+"/secrets/b", "elsewhere")
	got := run(t, "etcd", "verify", path)
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Contains(t, got.stdout, path+": verified, ")
	assert.Contains(t, got.stdout, "revision 6, 3 keys\nsha256 ")
	assert.Contains(t, got.stdout, "2  secrets\n")
	assert.NotContains(t, got.stdout, "pods", "what was deleted is not there")

	got = run(t, "etcd", "verify", path, "--etcd-prefix", "/other", "-o", "json")
	require.Equal(t, CodeOK, got.code, got.stderr)
	var saved etcd.Snapshot
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &saved))
	assert.Equal(t, 3, saved.Keys)
	assert.Empty(t, saved.Resources)

	content, err := os.ReadFile(path)
	require.NoError(t, err)
	content[len(content)/2] ^= 1
	require.NoError(t, os.WriteFile(path, content, 0o600))
	got = run(t, "etcd", "verify", path)
	assert.Equal(t, CodeError, got.code)
	assert.Empty(t, got.stdout)
	assert.Contains(t, got.stderr, "verifying the snapshot "+path+": the snapshot is damaged: its checksum is of another content")
}

func TestEtcdCommandsThatAreIncomplete(t *testing.T) {
	t.Parallel()
	there := filepath.Join(t.TempDir(), "there.db")
	require.NoError(t, os.WriteFile(there, []byte("earlier"), 0o600))
	for want, args := range map[string][]string{
		"a snapshot is never written over":                        {"etcd", "snapshot", "al9qy", "--out", there},
		`there is no command "snapshots"; did you mean snapshot?`: {"etcd", "snapshots"},
		"--out is missing":                                        {"etcd", "snapshot", "al9qy"},
		"no such file":                                            {"etcd", "verify", filepath.Join(t.TempDir(), "none.db")},
		"/dev/null":                                               {"etcd", "snapshot", "al9qy", "--out", "/dev/null/al9qy.db"},
		`there is no format "junit" here`:                         {"etcd", "members", "al9qy", "-o", "junit"},
		"exactly one file must be given":                          {"etcd", "verify"},
		"reading the kubeconfig":                                  {"etcd", "members", "al9qy"},
	} {
		got := run(t, args...)
		assert.NotEqual(t, CodeOK, got.code, args)
		assert.Contains(t, got.stderr, want, args)
	}
}
