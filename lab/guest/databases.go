package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/bbolt"
)

// containerdDatabases are where containerd keeps what it knows of images and their layers, below a root.
func containerdDatabases() []string {
	const dir = "var/lib/containerd/"
	return []string{dir + "io.containerd.metadata.v1.bolt/meta.db", dir + "io.containerd.snapshotter.v1.overlayfs/metadata.db"}
}

// rewriteDatabases makes containerd's databases of the same images the same: it notes when it made what, and the pages of a database hold what was removed as well, such as the lease of an import.
func rewriteDatabases(root string, at time.Time) error {
	stamp, err := at.MarshalBinary()
	if err != nil {
		return fmt.Errorf("encoding the time stamp: %w", err)
	}
	for _, path := range containerdDatabases() {
		if err := rewriteDatabase(filepath.Join(root, path), stamp); err != nil {
			return fmt.Errorf("writing %s anew: %w", path, err)
		}
	}
	return nil
}

// rewriteDatabase puts a copy in the place of a database.
func rewriteDatabase(path string, stamp []byte) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	old, err := bbolt.Open(path, info.Mode().Perm(), &bbolt.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	fresh, err := bbolt.Open(path+".new", info.Mode().Perm(), &bbolt.Options{NoSync: true})
	if err != nil {
		return errors.Join(err, old.Close())
	}
	err = old.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, from *bbolt.Bucket) error { return copyBucket(fresh, from, [][]byte{name}, stamp) })
	})
	if err := errors.Join(err, fresh.Close(), old.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// copyBucket copies a bucket, and then those in it, each in a transaction of its own: bbolt gives pages to the buckets that a transaction has opened in the random order of a map.
func copyBucket(to *bbolt.DB, from *bbolt.Bucket, path [][]byte, stamp []byte) error {
	err := to.Update(func(tx *bbolt.Tx) error {
		into, err := bucketAt(tx, path)
		if err != nil {
			return err
		}
		if err := into.SetSequence(from.Sequence()); err != nil {
			return err
		}
		return from.ForEach(func(key, value []byte) error {
			switch {
			case value == nil: // A bucket.
				return nil
			case isTime(key):
				return into.Put(key, stamp)
			default:
				return into.Put(key, value)
			}
		})
	})
	if err != nil {
		return err
	}
	return from.ForEachBucket(func(key []byte) error {
		return copyBucket(to, from.Bucket(key), append(slices.Clone(path), key), stamp)
	})
}

// isTime tells the keys under which containerd keeps times (metadata/boltutil).
func isTime(key []byte) bool { return string(key) == "createdat" || string(key) == "updatedat" }

// bucketAt opens a bucket, and makes it where it is missing.
func bucketAt(tx *bbolt.Tx, path [][]byte) (*bbolt.Bucket, error) {
	bucket, err := tx.CreateBucketIfNotExists(path[0])
	for _, name := range path[1:] {
		if err != nil {
			return nil, err
		}
		bucket, err = bucket.CreateBucketIfNotExists(name)
	}
	return bucket, err
}
