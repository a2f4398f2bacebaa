package etcdtest_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/etcdtest"
)

const prefix = "/giantswarm.io"

// TestASnapshotIsOpenedBeforeItHasItsName saves both versions of etcd, compares with what the program of etcd's own makers says about the file,
// and damages it in every way that a disk or a network can.
func TestASnapshotIsOpenedBeforeItHasItsName(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	// etcdctl of 3.6 has no subcommand that reads a file any more.
	etcdctl := etcdtest.Programs(t, true, builder.Etcdctl)[builder.Etcdctl]
	for _, legacy := range []bool{true, false} {
		t.Run(fmt.Sprintf("legacy=%t", legacy), func(t *testing.T) {
			t.Parallel()
			servers := etcdtest.Start(t, etcdtest.Options{Legacy: legacy})
			write := servers.Library(t)
			for i := range 20 {
				_, err := write.Put(t.Context(), fmt.Sprintf("%s/secrets/default/s%02d", prefix, i), "sealed")
				require.NoError(t, err)
			}
			for _, key := range []string{prefix + "/pods/shop/echo", prefix + "/pods/shop/echo", "elsewhere"} {
				_, err := write.Put(t.Context(), key, "again")
				require.NoError(t, err)
			}
			last, err := write.Delete(t.Context(), prefix+"/secrets/default/s00")
			require.NoError(t, err)

			file := filepath.Join(t.TempDir(), "al9qy.db")
			client := servers.Client(t)
			var told int64
			saved, err := client.Save(t.Context(), servers.Members[0].URL, file, prefix, func(written int64) { told = written })
			require.NoError(t, err)
			assert.Equal(t, saved.Bytes, told)
			assert.Equal(t, file, saved.Path)
			assert.Equal(t, last.Header.Revision, saved.Revision)
			assert.Equal(t, 21, saved.Keys, "19 secrets, one pod, one key of somebody else")
			assert.Equal(t, map[string]int{"secrets": 19, "pods": 1}, saved.Resources)
			_, err = client.Save(t.Context(), servers.Members[0].URL, file, prefix, nil)
			require.ErrorIs(t, err, os.ErrExist, "nothing is written over")
			assert.NoFileExists(t, file+".unverified")
			again, err := etcd.Verify(file, prefix)
			require.NoError(t, err)
			assert.Equal(t, saved, again)
			info, err := os.Stat(file)
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), info.Mode())
			assert.Equal(t, info.Size(), saved.Bytes)

			out, err := exec.CommandContext(t.Context(), etcdctl, "snapshot", "status", file, "-w", "json").Output()
			require.NoError(t, err)
			var theirs struct {
				Revision int64 `json:"revision"`
			}
			require.NoError(t, json.Unmarshal(out, &theirs), string(out))
			assert.Equal(t, saved.Revision, theirs.Revision)

			damage(t, file)
		})
	}
}

// damage makes broken copies of a snapshot.
func damage(t *testing.T, file string) {
	t.Helper()
	good, err := os.ReadFile(file)
	require.NoError(t, err)
	body := len(good) - sha256.Size
	resealed := func(change func([]byte)) []byte {
		broken := append([]byte{}, good[:body]...)
		change(broken)
		sum := sha256.Sum256(broken)
		return append(broken, sum[:]...)
	}
	for name, broken := range map[string][]byte{
		"empty":               {},
		"text":                []byte("not a database\n"),
		"no checksum":         good[:body],
		"cut off":             good[:len(good)/2],
		"one bit":             flipped(good, body/2),
		"checksum":            flipped(good, len(good)-1),
		"both headers sealed": resealed(func(b []byte) { clear(b[:2*os.Getpagesize()]) }),
		"pages sealed":        resealed(func(b []byte) { clear(b[2*os.Getpagesize():]) }),
	} {
		path := filepath.Join(t.TempDir(), "broken.db")
		require.NoError(t, os.WriteFile(path, broken, 0o600))
		_, err := etcd.Verify(path, prefix)
		require.ErrorIs(t, err, etcd.ErrDamaged, name)
		require.ErrorContains(t, err, "verifying the snapshot "+path+": ", name)
	}
	_, err = etcd.Verify(filepath.Join(t.TempDir(), "none"), prefix)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func flipped(b []byte, at int) []byte {
	out := append([]byte{}, b...)
	out[at] ^= 1
	return out
}

func TestASnapshotThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	servers := etcdtest.Start(t, etcdtest.Options{})
	client := servers.Client(t)
	dir := t.TempDir()
	servers.Members[0].Stop()
	_, err := client.Save(t.Context(), servers.Members[0].URL, filepath.Join(dir, "al9qy.db"), prefix, nil)
	require.ErrorContains(t, err, "asking etcd at "+servers.Members[0].URL+" for its snapshot: ")
	_, err = client.Save(t.Context(), "https://elsewhere.example.test", filepath.Join(dir, "al9qy.db"), prefix, nil)
	require.ErrorContains(t, err, "this endpoint was not given")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// TestASnapshotFromAServerThatFallsSilentEnds: a firewall that forgets a connection tells neither side.
func TestASnapshotFromAServerThatFallsSilentEnds(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	servers := etcdtest.Start(t, etcdtest.Options{})
	_, err := servers.Library(t).Put(t.Context(), "a", strings.Repeat("x", 1<<20))
	require.NoError(t, err)
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &forgotten{Conn: conn, most: 64 << 10, closed: make(chan struct{})}, nil
	}
	member := servers.Members[0]
	client, err := etcd.New(etcd.Options{Endpoints: []etcd.Endpoint{{URL: member.URL, Address: member.Address}}, TLS: servers.TLS(), Dial: dial, Timeout: 2 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	dir := t.TempDir()
	_, err = client.Save(t.Context(), member.URL, filepath.Join(dir, "al9qy.db"), prefix, nil)
	require.ErrorContains(t, err, "for its snapshot: ")
	var failed *etcd.Error
	require.ErrorAs(t, err, &failed)
	assert.True(t, failed.Timeout(), "it may pass: %s", err)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// forgotten is a connection over which nothing comes any more after so many bytes.
type forgotten struct {
	net.Conn

	most   int
	closed chan struct{}
	once   sync.Once
}

func (f *forgotten) Read(b []byte) (int, error) {
	if f.most <= 0 {
		<-f.closed
		return 0, net.ErrClosed
	}
	n, err := f.Conn.Read(b[:min(len(b), f.most)])
	f.most -= n
	return n, err
}

func (f *forgotten) Close() error {
	f.once.Do(func() { close(f.closed) })
	return f.Conn.Close()
}

func TestTheTableSaysWhoLeads(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	servers := etcdtest.Start(t, etcdtest.Options{Names: []string{"a", "b", "c"}})
	client := servers.Client(t)
	table, err := client.Table(t.Context())
	require.NoError(t, err)
	roles := map[etcd.Role]int{}
	for _, m := range table.Members {
		roles[m.Role]++
		assert.Positive(t, m.Status.Size)
	}
	assert.Equal(t, map[etcd.Role]int{etcd.Leader: 1, etcd.Follower: 2}, roles)

	// Who asks one alone hears from it who leads, and takes nobody for unreached whom it did not ask.
	for _, m := range servers.Members {
		one, err := etcd.New(etcd.Options{Endpoints: []etcd.Endpoint{{URL: m.URL, Address: m.Address}}, TLS: servers.TLS(), Dial: new(net.Dialer).DialContext, Timeout: soon})
		require.NoError(t, err)
		table, err := one.Table(t.Context())
		require.NoError(t, err)
		require.NoError(t, one.Close())
		roles := map[etcd.Role]int{}
		for _, row := range table.Members {
			roles[row.Role]++
		}
		assert.Equal(t, 1, roles[etcd.Leader])
		assert.Zero(t, roles[etcd.Unreached])
		assert.Equal(t, 2, roles[etcd.Voter]+roles[etcd.Follower])
	}

	// Somebody who is to join later, known by the table alone.
	fresh := servers.Add("d")
	require.Eventually(t, func() bool {
		_, err := servers.Library(t).MemberAddAsLearner(t.Context(), []string{fresh.Peer})
		return err == nil
	}, soon, 10*often)
	table, err = client.Table(t.Context())
	require.NoError(t, err)
	for _, m := range table.Members {
		assert.Equal(t, m.Name == "", m.Role == etcd.Learner, m.Name)
	}

	servers.Members[1].Stop()
	table, err = client.Table(t.Context())
	require.NoError(t, err)
	require.Len(t, table.Unread, 1)
	assert.Contains(t, table.Unread[0], servers.Members[1].URL)
	for _, m := range table.Members {
		assert.Equal(t, m.Name == "b", m.Role == etcd.Unreached, m.Name)
	}
}
