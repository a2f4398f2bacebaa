package disk

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/image"
)

const mib = 1 << 20

func store(t *testing.T) Store {
	t.Helper()
	program, err := exec.LookPath("qemu-img")
	require.NoError(t, err, "these tests need qemu-img: apt-get install qemu-utils")
	return Store{QEMUImg: program}
}

func base(t *testing.T) *image.Image {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "debian.img"), make([]byte, 4*mib), 0o600))
	found, err := image.Find(dir, "debian")
	require.NoError(t, err)
	return found
}

func TestRootIsKeptAndGrownAndNeverMadeSmaller(t *testing.T) {
	t.Parallel()
	s, from, dir := store(t), base(t), t.TempDir()
	first, err := s.Root(t.Context(), dir, "root", from, 16*mib)
	require.NoError(t, err)
	assert.Equal(t, &File{Path: filepath.Join(dir, "root.qcow2"), Format: "qcow2", Bytes: 16 * mib, Created: true}, first)
	_, err = s.run(t.Context(), "bitmap", "--add", first.Path, "witness")
	require.NoError(t, err)

	again, err := s.Root(t.Context(), dir, "root", from, 32*mib)
	require.NoError(t, err)
	assert.Equal(t, &File{Path: first.Path, Format: "qcow2", Bytes: 32 * mib}, again)
	_, err = s.run(t.Context(), "bitmap", "--remove", first.Path, "witness")
	require.NoError(t, err, "the overlay of the first start is the one of the second")

	smaller, err := s.Root(t.Context(), dir, "root", from, 8*mib)
	require.NoError(t, err)
	assert.EqualValues(t, 32*mib, smaller.Bytes)
}

func TestRootIsAtLeastAsLargeAsTheImage(t *testing.T) {
	t.Parallel()
	made, err := store(t).Root(t.Context(), t.TempDir(), "root", base(t), mib)
	require.NoError(t, err)
	assert.EqualValues(t, 4*mib, made.Bytes)
}

func TestRootSurvivesAKillInTheMiddle(t *testing.T) {
	t.Parallel()
	s, from, dir := store(t), base(t), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".root.qcow2.new"), []byte("half"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".root.origin.json.new"), []byte("{"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "root.origin.json"), []byte("{}"), 0o600))
	made, err := s.Root(t.Context(), dir, "root", from, 16*mib)
	require.NoError(t, err)
	assert.True(t, made.Created)
	_, err = s.Root(t.Context(), dir, "root", from, 16*mib)
	require.NoError(t, err)
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestRootThatCannotBeTrustedIsRefused(t *testing.T) {
	t.Parallel()
	s := store(t)
	for name, damage := range map[string]struct {
		do   func(t *testing.T, overlay string, from *image.Image) *image.Image
		want string
	}{
		"overwritten": {func(t *testing.T, overlay string, from *image.Image) *image.Image {
			t.Helper()
			require.NoError(t, os.WriteFile(overlay, []byte("garbage"), 0o600))
			return from
		}, "it is corrupt"},
		"metadata scrambled": {func(t *testing.T, overlay string, from *image.Image) *image.Image {
			t.Helper()
			scramble(t, overlay)
			return from
		}, "it is corrupt"},
		"another image": {func(t *testing.T, _ string, _ *image.Image) *image.Image {
			t.Helper()
			return base(t)
		}, "not what is there now"},
		"image replaced": {func(t *testing.T, _ string, from *image.Image) *image.Image {
			t.Helper()
			later := time.Unix(2e9, 0)
			require.NoError(t, os.Chtimes(from.Disk, later, later))
			return from
		}, "not what is there now"},
		"of unknown origin": {func(t *testing.T, overlay string, from *image.Image) *image.Image {
			t.Helper()
			require.NoError(t, os.Remove(originFile(overlay)))
			return from
		}, "nothing says what image"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, dir := base(t), t.TempDir()
			made, err := s.Root(t.Context(), dir, "root", from, 16*mib)
			require.NoError(t, err)
			_, err = s.Root(t.Context(), dir, "root", damage.do(t, made.Path, from), 16*mib)
			require.ErrorContains(t, err, damage.want)
			require.ErrorContains(t, err, made.Path)
			assert.Equal(t, contract.ExitDisk, exit.Code(err))
		})
	}
}

// scramble overwrites the table that says where the guest's blocks are.
func scramble(t *testing.T, overlay string) {
	t.Helper()
	f, err := os.OpenFile(overlay, os.O_RDWR, 0)
	require.NoError(t, err)
	where := make([]byte, 8)
	_, err = f.ReadAt(where, 40) // the field l1_table_offset of the header
	require.NoError(t, err)
	at := int64(where[4])<<24 | int64(where[5])<<16 | int64(where[6])<<8 | int64(where[7])
	_, err = f.WriteAt([]byte{0x80, 0, 0, 0, 0, 0, 0x7f, 0xff}, at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestDataDiskIsSparseKeptAndGrown(t *testing.T) {
	t.Parallel()
	s, dir := store(t), t.TempDir()
	made, err := s.Data(dir, "etcd", 1<<30)
	require.NoError(t, err)
	assert.Equal(t, &File{Path: filepath.Join(dir, "etcd.raw"), Format: "raw", Bytes: 1 << 30, Created: true}, made)
	stat := syscall.Stat_t{}
	require.NoError(t, syscall.Stat(made.Path, &stat))
	assert.Less(t, stat.Blocks*512, int64(mib))

	f, err := os.OpenFile(made.Path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("data")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	for _, size := range []int64{2 << 30, 1 << 30} {
		again, err := s.Data(dir, "etcd", size)
		require.NoError(t, err)
		assert.EqualValues(t, 2<<30, again.Bytes)
		assert.False(t, again.Created)
	}
	head := make([]byte, 4)
	f, err = os.Open(made.Path)
	require.NoError(t, err)
	_, err = f.Read(head)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	assert.Equal(t, "data", string(head))
}

func TestDataDiskHasToBeAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "etcd.raw"), 0o750))
	_, err := store(t).Data(dir, "etcd", mib)
	assert.Equal(t, contract.ExitDisk, exit.Code(err))
}

func TestLackOfRoomIsSaidAsSuch(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	s, dir := store(t), t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { assert.NoError(t, syscall.Unmount(dir, 0)) })
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 64<<10), 0o600))
	_, err := s.Root(t.Context(), dir, "root", base(t), 16*mib)
	require.Error(t, err)
	assert.Equal(t, contract.ExitDiskFull, exit.Code(err), err)
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	assert.Empty(t, left, "a failed attempt takes its pieces away")
	require.NoError(t, os.Remove(filepath.Join(dir, "ballast")))
}
