package guest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const (
	// DefaultStreams is how many logs are followed at the same time by default: each costs a connection and a line's memory.
	DefaultStreams = 256

	// maxLine bounds a line of a log; what is longer is skipped.
	maxLine = 2*contract.MaxReportBytes + len(contract.ReportPrefix)

	retryFirst = time.Second
	retryLast  = 10 * time.Second
)

// Facts are what a machine's launcher has reported so far. They only grow.
type Facts struct {
	// Started: QEMU runs guest code.
	Started bool
	// Address and Accelerator of the virtual machine, as of its last start.
	Address     string
	Accelerator contract.Accelerator
	// Bootstrap is empty before the guest's agent has spoken.
	Bootstrap contract.BootstrapState
	// BootstrapMessage and BootstrapLog say what failed. They are not cleaned.
	BootstrapMessage, BootstrapLog string
	// Problems are what the agent could not set up.
	Problems []string
}

// Decided says whether nothing more has to be learned from the log.
func (f *Facts) Decided() bool {
	return f.Bootstrap == contract.BootstrapSucceeded || f.Bootstrap == contract.BootstrapFailed
}

// add takes in one report, and says whether it brought something new.
func (f *Facts) add(r *contract.Report) bool {
	changed := false
	if r.Kind == contract.ReportStarted {
		changed = !f.Started || f.Address != r.Address || f.Accelerator != r.Accelerator
		f.Started, f.Address, f.Accelerator = true, r.Address, r.Accelerator
	}
	if g := r.Guest; g != nil {
		// States only move forward: a guest that reboots may say "running" before it has found its own mark.
		if g.Bootstrap != f.Bootstrap && !f.Decided() {
			f.Bootstrap, f.BootstrapMessage, f.BootstrapLog = g.Bootstrap, g.BootstrapMessage, g.BootstrapLog
			changed = true
		}
		if len(g.Problems) != len(f.Problems) {
			f.Problems = g.Problems
			changed = true
		}
	}
	return changed
}

// Follower follows the logs of machines whose bootstrap is undecided: one stream for each, a bounded number at a time.
type Follower struct {
	logs   PodLogs
	clock  clock.WithTicker
	log    logr.Logger
	notify func(machine types.NamespacedName)
	slots  chan struct{}
	// begin makes the context of a stream, which outlives the call that starts it.
	begin func() (context.Context, context.CancelFunc)

	mu       sync.Mutex
	machines map[types.NamespacedName]*follow
}

// NewFollower returns a Follower whose streams last until ctx ends, at most streams at a time; further machines wait for their
// turn. It calls notify after a machine's facts changed, which must not block.
func NewFollower(
	ctx context.Context, logs PodLogs, clock clock.WithTicker, log logr.Logger, streams int, notify func(types.NamespacedName),
) *Follower {
	return &Follower{
		logs: logs, clock: clock, log: log, notify: notify,
		slots:    make(chan struct{}, streams),
		begin:    func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) },
		machines: map[types.NamespacedName]*follow{},
	}
}

// follow is one machine's stream.
type follow struct {
	uid    types.UID
	facts  Facts
	last   time.Time          // of the last report, by the clock of the pod's host
	cancel context.CancelFunc // nil when no stream runs
}

// Follow makes sure that the pod's log is being followed on behalf of the machine, and returns what is known. Nothing is followed
// twice, nor after everything has been decided.
func (f *Follower) Follow(machine types.NamespacedName, pod client.ObjectKey, uid types.UID) Facts {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.machines[machine]
	if known != nil && known.uid != uid {
		known.stop()
		known = nil
	}
	if known == nil {
		known = &follow{uid: uid}
		f.machines[machine] = known
	}
	if known.cancel == nil && !known.facts.Decided() {
		ctx, cancel := f.begin()
		known.cancel = cancel
		go f.run(ctx, machine, pod, known)
	}
	return known.facts
}

// Facts returns what is known about the machine's pod, without following anything.
func (f *Follower) Facts(machine types.NamespacedName, uid types.UID) Facts {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.machines[machine]; known != nil && known.uid == uid {
		return known.facts
	}
	return Facts{}
}

// Forget ends the machine's stream and drops what is known.
func (f *Follower) Forget(machine types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.machines[machine]; known != nil {
		known.stop()
		delete(f.machines, machine)
	}
}

// Following counts the streams that run or wait for their turn.
func (f *Follower) Following() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, m := range f.machines {
		if m.cancel != nil {
			n++
		}
	}
	return n
}

func (m *follow) stop() {
	if m.cancel != nil {
		m.cancel()
		m.cancel = nil
	}
}

// run reads the log, again and again, until everything is decided or nobody wants to know. A stream ends with its container, so
// an end alone means nothing. Between two tries others may have the slot: machines whose containers never start must not silence those that do.
func (f *Follower) run(ctx context.Context, machine types.NamespacedName, pod client.ObjectKey, m *follow) {
	pause := backoff()
	for ctx.Err() == nil {
		select {
		case f.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		decided, read, err := f.read(ctx, machine, pod, m)
		<-f.slots
		if decided {
			return
		}
		if err != nil && ctx.Err() == nil {
			f.log.V(1).Info("following a log ended", "machine", machine, "pod", pod, "reason", err.Error())
		}
		if read {
			pause = backoff()
		}
		select {
		case <-f.clock.After(pause.Step()):
		case <-ctx.Done():
		}
	}
}

func backoff() wait.Backoff {
	return wait.Backoff{Duration: retryFirst, Factor: 2, Steps: 16, Cap: retryLast}
}

// read follows the log once, from the last report on. It says whether everything is decided now and whether anything was read.
func (f *Follower) read(ctx context.Context, machine types.NamespacedName, pod client.ObjectKey, m *follow) (decided, read bool, err error) {
	stream, err := f.logs.Follow(ctx, pod, contract.Container, f.since(m))
	if err != nil {
		return false, false, err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	lines := bufio.NewReaderSize(stream, maxLine)
	for {
		line, more, err := lines.ReadLine()
		if errors.Is(err, io.EOF) {
			return false, read, nil
		}
		if err != nil {
			return false, read, err
		}
		read = true
		for more && err == nil { // Too long to be a report: to its end, without keeping it.
			line = nil
			_, more, err = lines.ReadLine()
		}
		report, ok := contract.ParseReport(line)
		if !ok {
			continue
		}
		if f.add(ctx, machine, m, report) {
			return true, true, nil
		}
	}
}

// since is where to go on reading. A report read twice does no harm, so it is a little earlier than the last one.
func (f *Follower) since(m *follow) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.last.IsZero() {
		return time.Time{}
	}
	return m.last.Add(-time.Second)
}

// add records a report and says whether everything is decided now.
func (f *Follower) add(ctx context.Context, machine types.NamespacedName, m *follow, r *contract.Report) bool {
	f.mu.Lock()
	if ctx.Err() != nil { // Forgotten, or another pod's turn.
		f.mu.Unlock()
		return true
	}
	m.last = r.Time
	changed := m.facts.add(r)
	decided := m.facts.Decided()
	if decided {
		m.stop()
	}
	f.mu.Unlock()
	if changed {
		f.notify(machine)
	}
	return decided
}
