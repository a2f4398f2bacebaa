package builder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// CacheEnv overrides where the cache is.
const CacheEnv = "LAB_CACHE"

// DefaultCache returns the cache directory: $LAB_CACHE, or
// cluster-api-provider-kvm below the user's cache directory.
func DefaultCache() (string, error) {
	if dir := os.Getenv(CacheEnv); dir != "" {
		return filepath.Abs(dir)
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the user's cache directory (set %s to choose one): %w", CacheEnv, err)
	}
	return filepath.Join(base, "cluster-api-provider-kvm"), nil
}

// fileLock is an advisory lock that dies with its holder, even by SIGKILL.
type fileLock struct{ file *os.File }

// errLocked says that another process holds the lock.
var errLocked = errors.New("locked by another process")

func tryLock(path string) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644) //nolint:gosec // Not a secret: the lock file is empty.
	if err != nil {
		return nil, fmt.Errorf("opening lock %s: %w", path, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		closeErr := f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("locking %s: %w", path, errors.Join(err, closeErr))
	}
	return &fileLock{file: f}, nil
}

func (l *fileLock) release() error {
	// Closing releases the lock. The file stays: removing it would let a third
	// builder lock a new file while a second one still waits on the old.
	return l.file.Close()
}
