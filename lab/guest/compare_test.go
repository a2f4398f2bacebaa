package guest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// tree makes a small root whose files are as old as those of an image, also after a change.
func tree(t *testing.T, change func(file string) error) string {
	t.Helper()
	root := t.TempDir()
	file := filepath.Join(root, "etc", "a file")
	require.NoError(t, os.Mkdir(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte("content"), 0o600))
	epoch := time.Unix(Default().Epoch, 0)
	if change != nil {
		require.NoError(t, change(file))
	}
	if info, err := os.Stat(file); err == nil && !info.ModTime().Before(epoch) {
		require.NoError(t, os.Chtimes(file, epoch, epoch))
	}
	for _, dir := range []string{filepath.Dir(file), root} {
		require.NoError(t, os.Chtimes(dir, epoch, epoch))
	}
	return root
}

func listed(t *testing.T, root string) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, listTree(root, &out))
	return out.String()
}

func TestEqualRootsHaveEqualLists(t *testing.T) {
	t.Parallel()
	first := listed(t, tree(t, nil))
	assert.Equal(t, first, listed(t, tree(t, nil)))
	assert.Contains(t, first, `"/etc/a file" -rw------- `)
	assert.Contains(t, first, " 1767225600 ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73\n", "the digest of the content")
	for what, change := range map[string]func(file string) error{
		"content": func(file string) error { return os.WriteFile(file, []byte("another"), 0o600) },
		"mode":    func(file string) error { return os.Chmod(file, 0o755) },
		"time":    func(file string) error { return os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0)) },
		"name":    func(file string) error { return os.Rename(file, file+"s") },
		"link":    func(file string) error { return os.Symlink("elsewhere", file+" too") },
	} {
		assert.NotEqual(t, first, listed(t, tree(t, change)), what)
	}
	assert.Contains(t, listed(t, tree(t, func(file string) error { return os.Symlink("elsewhere", file+" too") })), " elsewhere\n")
}

func TestTwoBuildsAreCompared(t *testing.T) {
	t.Parallel()
	dirs := [2]string{t.TempDir(), t.TempDir()}
	for i, files := range []map[string]string{
		{diskFile: "disk", kernelFile: "kernel", filesFile: "\"/\" d\n\"/a\" 1\n\"/b\" 1\n"},
		{diskFile: "other", kernelFile: "kernel", filesFile: "\"/\" d\n\"/a\" 2\n\"/b\" 1\n\"/c\" 1\n"},
	} {
		for name, content := range files {
			require.NoError(t, os.WriteFile(filepath.Join(dirs[i], name), []byte(content), 0o600))
		}
	}
	found, err := compare(dirs[0], dirs[1])
	require.NoError(t, err)
	assert.Equal(t, []string{diskFile, filesFile}, found.Different)
	assert.Equal(t, []string{"- \"/a\" 1", "+ \"/a\" 2", "+ \"/c\" 1"}, found.Paths)
	assert.Len(t, found.Same, 1)
	assert.NotEmpty(t, found.Same[kernelFile])

	found, err = compare(dirs[0], dirs[0])
	require.NoError(t, err)
	assert.Empty(t, found.Different)
	assert.Empty(t, found.Paths)
}

// store is what containerd keeps of some images, with times and with what an import leaves in the pages.
func store(t *testing.T, path string, at time.Time, images ...string) {
	t.Helper()
	stamp, err := at.MarshalBinary()
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	db, err := bbolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		lease, err := bucketAt(tx, [][]byte{[]byte("v1"), []byte("leases"), []byte(at.String())})
		if err != nil {
			return err
		}
		return lease.Put([]byte("createdat"), stamp)
	}))
	for _, image := range images {
		require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
			bucket, err := bucketAt(tx, [][]byte{[]byte("v1"), []byte("images"), []byte(image)})
			if err != nil {
				return err
			}
			if _, err := tx.Bucket([]byte("v1")).Bucket([]byte("images")).NextSequence(); err != nil {
				return err
			}
			for key, value := range map[string][]byte{"createdat": stamp, "updatedat": stamp, "name": bytes.Repeat([]byte(image), 300), "empty": {}} {
				if err := bucket.Put([]byte(key), value); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("v1")).Bucket([]byte("leases")).DeleteBucket([]byte(at.String()))
	}))
	require.NoError(t, db.Close())
}

// TestDatabasesTellNothingOfTheirMaking, neither when that was nor in which order, and keep what is in them.
func TestDatabasesTellNothingOfTheirMaking(t *testing.T) {
	t.Parallel()
	epoch := time.Unix(Default().Epoch, 0).UTC()
	roots := [2]string{t.TempDir(), t.TempDir()}
	for _, path := range containerdDatabases() {
		store(t, filepath.Join(roots[0], path), epoch.Add(time.Hour), "a", "b", "c", "d", "e")
		store(t, filepath.Join(roots[1], path), epoch.Add(time.Minute), "e", "c", "d", "a", "b")
	}
	for _, root := range roots {
		require.NoError(t, rewriteDatabases(root, epoch))
	}
	stamp, err := epoch.MarshalBinary()
	require.NoError(t, err)
	for _, path := range containerdDatabases() {
		one, err := os.ReadFile(filepath.Join(roots[0], path))
		require.NoError(t, err)
		two, err := os.ReadFile(filepath.Join(roots[1], path))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(one, two), path)

		db, err := bbolt.Open(filepath.Join(roots[0], path), 0o600, &bbolt.Options{ReadOnly: true})
		require.NoError(t, err)
		require.NoError(t, db.View(func(tx *bbolt.Tx) error {
			images := tx.Bucket([]byte("v1")).Bucket([]byte("images"))
			assert.EqualValues(t, 5, images.Sequence(), "the next layer has a number of its own")
			assert.Equal(t, stamp, images.Bucket([]byte("b")).Get([]byte("updatedat")))
			assert.Equal(t, bytes.Repeat([]byte("b"), 300), images.Bucket([]byte("b")).Get([]byte("name")))
			assert.NotNil(t, tx.Bucket([]byte("v1")).Bucket([]byte("leases")), "also what is empty")
			return nil
		}))
		require.NoError(t, db.Close())
	}
}

func TestEveryFilledInodeGetsTheTimeOfTheImage(t *testing.T) {
	t.Parallel()
	last, err := lastInode("Filesystem volume name:   root\nInode count:              196608\nFree blocks:              12\nFree inodes:              196595\n")
	require.NoError(t, err)
	assert.Equal(t, 13, last)
	assert.Equal(t, `set_inode_field <2> atime @5
set_inode_field <2> ctime @5
set_inode_field <11> atime @5
set_inode_field <11> ctime @5
set_inode_field <12> atime @5
set_inode_field <12> ctime @5
set_inode_field <13> atime @5
set_inode_field <13> ctime @5
`, timesScript(last, 5))

	_, err = lastInode("dumpe2fs: Bad magic number in super-block\n")
	require.ErrorContains(t, err, "counts no inodes")
}
