package etcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
)

// Layout of a snapshot: a bbolt database whose bucket "key" has one entry per change, and the SHA-256 of all of it at the end (etcd v3.6,
// server/storage/mvcc/revision.go and server/etcdserver/api/v3rpc/maintenance.go; the same since 3.0).
const (
	keyBucket     = "key"
	revisionBytes = 8 + 1 + 8
	tombstone     = 't'
	// A database has whole pages, so the length tells whether a checksum follows.
	sector = 512
	// openTimeout is how long to wait for somebody else who has the file open.
	openTimeout = 5 * time.Second
	// unverified is the end of a file's name until it was opened.
	unverified = ".unverified"
)

// ErrDamaged means that a file is not a whole and consistent snapshot.
var ErrDamaged = errors.New("the snapshot is damaged")

// Snapshot is what a verified snapshot holds.
type Snapshot struct {
	// Path of the file, Bytes its size, SHA256 the checksum that etcd put at its end.
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	// Revision is etcd's at the moment of the snapshot, Keys how many keys there were.
	Revision int64 `json:"revision"`
	Keys     int   `json:"keys"`
	// Resources counts the keys below a prefix by their first part, for an API server's prefix by resource: secrets, pods, …
	Resources map[string]int `json:"resources,omitempty"`
}

// Save writes a snapshot of the server at one endpoint to a new file, and opens it to see that it is whole. The file has its name only when it
// was verified; it holds everything, so nobody else may read it. prefix is what Resources are counted below. told hears now and then how
// many bytes have come; nil hears nothing.
func (c *Client) Save(ctx context.Context, endpointName, path, prefix string, told func(written int64)) (*Snapshot, error) {
	const operation = "snapshot"
	e, err := c.at(endpointName, operation)
	if err != nil {
		return nil, err
	}
	wrong := func(err error) error { return &Error{Endpoint: e.name, Operation: operation, Err: err} }
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("saving the snapshot as %s: %w", path, os.ErrExist)
	}
	if err := c.reach(ctx, e); err != nil {
		return nil, wrong(err)
	}
	draft := path + unverified
	if err := e.stream(ctx, draft, told, c.stall); err != nil {
		return nil, wrong(failure.Join(c.cause(ctx, e, err), discard(draft)))
	}
	saved, err := Verify(draft, prefix)
	if err != nil {
		return nil, failure.Join(err, discard(draft))
	}
	if err := os.Rename(draft, path); err != nil {
		return nil, failure.Join(fmt.Errorf("saving the snapshot: %w", err), discard(draft))
	}
	saved.Path = path
	return saved, nil
}

// reach is bounded, unlike the stream: a server that takes a connection and says nothing must not hold up a run for ever, right before the point of no return.
func (c *Client) reach(ctx context.Context, e *endpoint) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return e.reach(ctx)
}

// stream writes what the server sends. There is no time limit for all of it: the size decides. The caller's context ends it, and so does a server that does not even answer pings any more, or that does and
// sends nothing for so long, as one whose disk hangs: right before the point of no return nobody would ever hear of it.
func (e *endpoint) stream(ctx context.Context, path string, told func(int64), stall time.Duration) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(stall, func() { cancel(fmt.Errorf("nothing came for %s: %w", stall, context.DeadlineExceeded)) })
	defer stalled.Stop()
	in, err := e.grpc.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer func() { err = failure.Join(err, in.Close()) }()
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = failure.Join(err, file.Close()) }()
	alive := func(written int64) {
		stalled.Reset(stall)
		if told != nil {
			told(written)
		}
	}
	if _, err := io.Copy(&teller{file, alive, 0}, in); err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, context.DeadlineExceeded) {
			err = cause // Nobody has interrupted it.
		}
		return fmt.Errorf("after some of it: %w", err)
	}
	return file.Sync()
}

// teller tells how much was written.
type teller struct {
	w    io.Writer
	told func(int64)
	n    int64
}

func (t *teller) Write(b []byte) (int, error) {
	n, err := t.w.Write(b)
	t.n += int64(n)
	t.told(t.n)
	return n, err
}

func discard(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing what is left of the snapshot: %w", err)
	}
	return nil
}

// Verify opens a snapshot: its checksum, and every change in it. It reads the file once for each.
func Verify(path, prefix string) (*Snapshot, error) {
	wrong := func(err error) error { return fmt.Errorf("verifying the snapshot %s: %w", path, err) }
	s := &Snapshot{Path: path}
	var err error
	if s.Bytes, s.SHA256, err = checksum(path); err != nil {
		return nil, wrong(err)
	}
	db, err := bbolt.Open(path, 0, &bbolt.Options{ReadOnly: true, Timeout: openTimeout})
	if err != nil {
		return nil, wrong(fmt.Errorf("%w: opening the database: %w", ErrDamaged, err))
	}
	err = db.View(func(tx *bbolt.Tx) error { return s.count(tx, prefix) })
	if err := failure.Join(err, db.Close()); err != nil {
		return nil, wrong(err)
	}
	return s, nil
}

// checksum compares the end of the file with what comes before.
func checksum(path string) (size int64, sum string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer func() { err = failure.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, "", err
	}
	size = info.Size()
	if size <= sha256.Size || size%sector != sha256.Size {
		return 0, "", fmt.Errorf("%w: %d bytes are no database with a checksum", ErrDamaged, size)
	}
	hash := sha256.New()
	if _, err := io.CopyN(hash, f, size-sha256.Size); err != nil {
		return 0, "", fmt.Errorf("reading it: %w", err)
	}
	stored, err := io.ReadAll(f)
	if err != nil {
		return 0, "", fmt.Errorf("reading its checksum: %w", err)
	}
	if !bytes.Equal(hash.Sum(nil), stored) {
		return 0, "", fmt.Errorf("%w: its checksum is of another content", ErrDamaged)
	}
	return size, hex.EncodeToString(stored), nil
}

// count reads all changes in the order in which they were made, and keeps what is there at the end. The library panics, or reads behind the
// end of the file, where a page is not what it should be; its own check of the pages does so in another goroutine, where nobody can hold it.
func (s *Snapshot) count(tx *bbolt.Tx, prefix string) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	bucket := tx.Bucket([]byte(keyBucket))
	if bucket == nil {
		return fmt.Errorf("%w: it has no keys", ErrDamaged)
	}
	live := map[string]struct{}{}
	var last []byte
	err = bucket.ForEach(func(k, v []byte) error {
		if len(k) < revisionBytes {
			return fmt.Errorf("%w: a revision of %d bytes", ErrDamaged, len(k))
		}
		if bytes.Compare(last, k) >= 0 {
			return fmt.Errorf("%w: revision %x after %x", ErrDamaged, k, last)
		}
		last = append(last[:0], k...)
		s.Revision = int64(binary.BigEndian.Uint64(k)) //nolint:gosec // etcd counts in int64
		var change mvccpb.KeyValue
		if err := change.Unmarshal(v); err != nil {
			return fmt.Errorf("%w: revision %d: %w", ErrDamaged, s.Revision, err)
		}
		if len(k) > revisionBytes && k[revisionBytes] == tombstone {
			delete(live, string(change.Key))
		} else {
			live[string(change.Key)] = struct{}{}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if s.Revision == 0 {
		return fmt.Errorf("%w: it has no revision", ErrDamaged)
	}
	s.Keys, s.Resources = len(live), map[string]int{}
	for key := range live {
		if rest, below := strings.CutPrefix(key, prefix); below {
			resource, _, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
			s.Resources[resource]++
		}
	}
	return nil
}

// Kinds are the names of the resources, sorted.
func (s *Snapshot) Kinds() []string { return slices.Sorted(maps.Keys(s.Resources)) }
