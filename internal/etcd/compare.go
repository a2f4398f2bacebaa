package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrDiffers means that two servers of one cluster hold different data at one revision: etcd 3.5.0 to 3.5.2 may after a crash (etcd-io/etcd, issue 13766), and neither says so by itself.
var ErrDiffers = errors.New("the members do not hold the same")

// ErrMoved means that two servers had nothing in common to compare for a moment: one was behind, or etcd was compacted meanwhile. Asking again is safe.
var ErrMoved = errors.New("there was no revision that both members had")

// Place is one server, by the client that leads to it.
type Place struct {
	Client   *Client
	Endpoint string
}

// pageKeys is how many keys are read at once: each may have a value of a megabyte and a half.
const pageKeys = 100

// Same makes sure that two servers hold the same at one revision, each by what it has itself, and returns the revision. Where their hashes differ everything is read and compared: servers of
// different patch levels count differently what a compaction left behind (etcd-io/etcd, pull request 18274), and such a difference is none.
func Same(ctx context.Context, one, other Place) (revision int64, err error) {
	first, err := one.hash(ctx, 0)
	if err != nil {
		return 0, err
	}
	revision = first.Header.GetRevision()
	second, err := other.hash(ctx, revision)
	if err != nil {
		return revision, err
	}
	if first.CompactRevision == second.CompactRevision && first.Hash == second.Hash {
		return revision, nil
	}
	return revision, compareAll(ctx, one, other, revision)
}

// hash is what a server counts of all keys up to a revision; 0 is its latest.
func (p Place) hash(ctx context.Context, revision int64) (answer *pb.HashKVResponse, err error) {
	err = p.Client.ask(ctx, p.Endpoint, "hash of all keys", func(ctx context.Context, e *endpoint) error {
		answered, err := e.grpc.HashKV(ctx, e.grpc.Endpoints()[0], revision)
		answer = (*pb.HashKVResponse)(answered)
		return moved(err)
	})
	return answer, err
}

// page reads keys from one on, in their order, at a revision, without asking other members.
func (p Place) page(ctx context.Context, from string, revision int64) (keys []*mvccpb.KeyValue, more bool, err error) {
	err = p.Client.ask(ctx, p.Endpoint, "reading of all keys", func(ctx context.Context, e *endpoint) error {
		answer, err := e.grpc.Get(ctx, from, clientv3.WithFromKey(), clientv3.WithRev(revision), clientv3.WithLimit(pageKeys), clientv3.WithSerializable())
		if err != nil {
			return moved(err)
		}
		keys, more = answer.Kvs, answer.More
		return nil
	})
	return keys, more, err
}

// moved tells of an answer that a later question may not get.
func moved(err error) error {
	if errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, rpctypes.ErrFutureRev) {
		return fmt.Errorf("%w: %w", ErrMoved, err)
	}
	return err
}

// compareAll reads both servers side by side. The error names the first key that differs, and no value.
func compareAll(ctx context.Context, one, other Place, revision int64) error {
	from, more := "\x00", true
	for more {
		var left, right []*mvccpb.KeyValue
		var err error
		if left, more, err = one.page(ctx, from, revision); err != nil {
			return err
		}
		var otherMore bool
		if right, otherMore, err = other.page(ctx, from, revision); err != nil {
			return err
		}
		for i := range max(len(left), len(right)) {
			if i >= len(left) || i >= len(right) || !sameKey(left[i], right[i]) {
				return fmt.Errorf("%w: at revision %d they differ at key %q", ErrDiffers, revision, differing(i, left, right))
			}
		}
		if more != otherMore {
			return fmt.Errorf("%w: at revision %d one of them has keys behind %q", ErrDiffers, revision, from)
		}
		if len(left) == 0 {
			return nil
		}
		// The key right behind the last one.
		from = string(left[len(left)-1].Key) + "\x00"
	}
	return nil
}

func sameKey(a, b *mvccpb.KeyValue) bool {
	return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) && a.CreateRevision == b.CreateRevision && a.ModRevision == b.ModRevision && a.Version == b.Version && a.Lease == b.Lease
}

// differing is the key at a place of two lists that differ there: the one that comes first.
func differing(i int, left, right []*mvccpb.KeyValue) string {
	switch {
	case i >= len(left):
		return string(right[i].Key)
	case i >= len(right) || bytes.Compare(left[i].Key, right[i].Key) <= 0:
		return string(left[i].Key)
	}
	return string(right[i].Key)
}
