package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// ErrLockLost means that this run may not write any more: it could not renew its lock in time, or somebody else holds it.
var ErrLockLost = errors.New("the run lock is lost")

// HeldError means that somebody else's run holds the lock.
type HeldError struct {
	// Holder is who, as user@host (process).
	Holder string
	// Until is when the lock ends if its holder was killed.
	Until time.Time
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s is working on this cluster; if that run was killed, its lock ends at %s", e.Holder, e.Until.UTC().Format(time.RFC3339))
}

// Lock is the run lock of one cluster, a Lease. The number of its transitions is the fencing token: it grows with every new holder.
//
// Nobody's clock is trusted alone, or one that is wrong would make two holders. How long the holder may write is measured from before the
// last renewal, by its monotonic clock and by the clock on its wall: the first one stands still while a laptop sleeps, the second one
// jumps. It is shorter than what others wait. A lock that has ended by the clock of somebody else's machine is looked at for as long
// as it lasts, and taken if it was not renewed meanwhile.
type Lock struct {
	// Client writes the Lease; the lock is its own gate.
	Client client.Client
	Clock  clock.WithTicker
	Key    client.ObjectKey
	// Holder is who asks.
	Holder string
	// Duration is how long a lock lasts that is not renewed. It is renewed after a third of it.
	Duration time.Duration
	// Gone tells that a holder of this machine has ended, so that its lock need not be waited for; nil believes nobody.
	Gone func(holder string) bool
	// Tell hears whose lock is watched before it is taken, and for how long at most; nil tells nobody.
	Tell func(format string, args ...any)

	mu      sync.Mutex
	token   int64
	valid   time.Time
	failure error
}

// Acquire takes the lock, or says who has it. The second to ask is refused at once.
func (l *Lock) Acquire(ctx context.Context) error {
	lease := &coordinationv1.Lease{}
	err := l.Client.Get(ctx, l.Key, lease)
	asked, before := l.Clock.Now(), holderOf(lease)
	switch {
	case apierrors.IsNotFound(err):
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.Key.Namespace, Name: l.Key.Name}}
		l.fill(lease, 1)
		err = l.Client.Create(ctx, lease, client.FieldOwner(kube.FieldOwner))
	case err != nil:
		return fmt.Errorf("reading Lease %s: %w", l.Key, err)
	default:
		if err := l.ended(ctx, lease); err != nil {
			return err
		}
		asked = l.Clock.Now()
		l.fill(lease, transitions(lease)+1)
		err = l.Client.Update(ctx, lease, client.FieldOwner(kube.FieldOwner))
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return &HeldError{Holder: cmp.Or(before, "somebody who was faster"), Until: asked.Add(l.Duration)}
	}
	if err != nil {
		return fmt.Errorf("taking Lease %s: %w", l.Key, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.valid, l.failure = transitions(lease), asked.Add(l.usable()), nil
	return nil
}

// ended waits until it is certain that nobody holds the lock, or says who does. Only the holder changes a Lease that is held: the update that
// follows fails if it did while this waited.
func (l *Lock) ended(ctx context.Context, lease *coordinationv1.Lease) error {
	holder, lasts, err := l.refuses(lease)
	if holder == "" || err != nil {
		return err
	}
	// It has ended, unless this clock is ahead of the holder's, or it was renewed in what is the future here.
	if l.Tell != nil {
		l.Tell("the run of %s has left its lock; watching for %s that it really has ended", holder, lasts)
	}
	timer := l.Clock.NewTimer(lasts)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("watching the lock of %s: %w", holder, ctx.Err())
	}
}

// Look says with a [HeldError] who has the lock, and takes nothing; nil means that it is worth asking for.
func (l *Lock) Look(ctx context.Context) error {
	lease := &coordinationv1.Lease{}
	if err := l.Client.Get(ctx, l.Key, lease); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading Lease %s: %w", l.Key, err)
	}
	_, _, err := l.refuses(lease)
	return err
}

// refuses says who else is named in a Lease, and how long that lasts without being renewed; with a [HeldError] when it has not ended by this clock. Nobody is when that run has given
// it back, or its process is known to be gone.
func (l *Lock) refuses(lease *coordinationv1.Lease) (holder string, lasts time.Duration, err error) {
	holder, ends := held(lease)
	if holder == "" || holder == l.Holder || l.Gone != nil && l.Gone(holder) {
		return "", 0, nil
	}
	lasts = time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
	if left := ends.Sub(l.Clock.Now()); left > 0 && left <= lasts {
		return holder, lasts, &HeldError{Holder: holder, Until: ends}
	}
	return holder, lasts, nil
}

// usable is how long after a renewal the holder writes: what is left is for requests on their way.
func (l *Lock) usable() time.Duration { return l.Duration * 2 / 3 }

func holderOf(lease *coordinationv1.Lease) string { return ptr.Deref(lease.Spec.HolderIdentity, "") }

func held(lease *coordinationv1.Lease) (holder string, ends time.Time) {
	holder = holderOf(lease)
	if lease.Spec.RenewTime != nil && lease.Spec.LeaseDurationSeconds != nil {
		ends = lease.Spec.RenewTime.Add(time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second)
	}
	return holder, ends
}

func transitions(lease *coordinationv1.Lease) int64 {
	return int64(ptr.Deref(lease.Spec.LeaseTransitions, 0))
}

func (l *Lock) fill(lease *coordinationv1.Lease, token int64) {
	now := metav1.NewMicroTime(l.Clock.Now())
	seconds := max(int32(l.Duration/time.Second), 1) //nolint:gosec // minutes at most
	number := int32(token)                           //nolint:gosec // one per run of one cluster
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &l.Holder, &seconds
	lease.Spec.AcquireTime, lease.Spec.RenewTime, lease.Spec.LeaseTransitions = &now, &now, &number
}

// Keep renews the lock until the context ends.
func (l *Lock) Keep(ctx context.Context) {
	ticker := l.Clock.NewTicker(l.Duration / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			l.renew(ctx)
		}
	}
}

// renew extends the lock. A server that does not answer may answer next time; a Lease of somebody else ends it for good.
func (l *Lock) renew(ctx context.Context) {
	asked := l.Clock.Now()
	lease := &coordinationv1.Lease{}
	err := l.Client.Get(ctx, l.Key, lease)
	if err == nil {
		if holder, _ := held(lease); holder != l.Holder || transitions(lease) != l.Token() {
			l.lose(fmt.Errorf("%w: %s has taken it", ErrLockLost, holder))
			return
		}
		now := metav1.NewMicroTime(asked)
		lease.Spec.RenewTime = &now
		err = l.Client.Update(ctx, lease, client.FieldOwner(kube.FieldOwner))
	}
	if apierrors.IsNotFound(err) {
		l.lose(fmt.Errorf("%w: Lease %s was deleted", ErrLockLost, l.Key))
		return
	}
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.valid = asked.Add(l.usable())
	}
}

func (l *Lock) lose(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = err
}

// Token is the fencing token; 0 before the lock was taken.
func (l *Lock) Token() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token
}

// Gate says whether this run may write now. A lock that could not be renewed for a while, because the API server was away, is renewed here:
// as long as nobody else took it, nothing is lost.
func (l *Lock) Gate(ctx context.Context) error {
	// A clock that is set while the lock is renewed makes it late again at once.
	for range renewals {
		l.mu.Lock()
		late := l.failure == nil && l.late()
		l.mu.Unlock()
		if !late {
			break
		}
		l.renew(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.failure != nil:
		return l.failure
	case l.late():
		return fmt.Errorf("%w: it could not be renewed in time: %w", ErrLockLost, errNotRenewed)
	}
	return nil
}

// renewals is how often a late lock is renewed before its holder gives up for now.
const renewals = 3

// late tells that one of the two clocks says that the time to write is over.
func (l *Lock) late() bool {
	now := l.Clock.Now()
	return !now.Before(l.valid) || !now.Round(0).Before(l.valid.Round(0)) // Round takes the monotonic reading off.
}

// errNotRenewed passes by itself when the API server answers again.
var errNotRenewed = errors.New("the API server does not answer")

// Release gives the lock back, so that the next run need not wait.
func (l *Lock) Release(ctx context.Context) error {
	lease := &coordinationv1.Lease{}
	switch err := l.Client.Get(ctx, l.Key, lease); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("releasing Lease %s: %w", l.Key, err)
	}
	if holder, _ := held(lease); holder != l.Holder || transitions(lease) != l.Token() {
		return nil
	}
	nobody := ""
	lease.Spec.HolderIdentity = &nobody
	if err := l.Client.Update(ctx, lease, client.FieldOwner(kube.FieldOwner)); err != nil {
		return fmt.Errorf("releasing Lease %s: %w", l.Key, err)
	}
	return nil
}

// clocksDiffer is how much the clocks of two workstations may differ before a run that goes on is taken for killed.
const clocksDiffer = 2 * time.Minute

// KilledSince tells since when nobody works on a migration that says that a run does: its lock has ended by this clock and by any that may be right, or was taken away, and no later run has
// the lock. It is zero where a run goes on, and where none is said to. What gone tells of a process of this machine counts as for [Lock.Gone].
func KilledSince(ctx context.Context, reader client.Reader, object *migrationv1alpha1.ClusterMigration, now time.Time, gone func(holder string) bool) (time.Time, error) {
	if !atWork(object) {
		return time.Time{}, nil
	}
	lease, key := &coordinationv1.Lease{}, LockKey(object.Namespace, object.Spec.ClusterID)
	if err := reader.Get(ctx, key, lease); client.IgnoreNotFound(err) != nil {
		return time.Time{}, fmt.Errorf("reading Lease %s: %w", key, err)
	}
	holder, ends := held(lease)
	if holder != "" && now.Before(ends.Add(clocksDiffer)) && (gone == nil || !gone(holder)) {
		return time.Time{}, nil
	}
	// A run that has ended since the object was read has said so before it gave its lock back.
	fresh, err := Read(ctx, reader, object.Namespace, object.Spec.ClusterID)
	if err != nil || fresh == nil || !atWork(fresh) || fresh.Status.Run == nil {
		return time.Time{}, err
	}
	if lease.Spec.RenewTime == nil {
		return fresh.Status.Run.StartedAt.Time, nil
	}
	if fresh.Status.Run.Token > transitions(lease) {
		return time.Time{}, nil
	}
	return lease.Spec.RenewTime.Time, nil
}

// atWork tells of a migration that says that a run works on it.
func atWork(object *migrationv1alpha1.ClusterMigration) bool {
	return object.Status.State == migrationv1alpha1.StateRunning || object.Status.State == migrationv1alpha1.StateRollingBack
}
