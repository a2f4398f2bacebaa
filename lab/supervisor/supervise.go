package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
)

const (
	lockPoll  = 20 * time.Millisecond
	lockTries = 50
	stopLimit = time.Minute
	// clusterDir is the cluster's directory within the lab's.
	clusterDir = "mc"
	// stay is what the starter says when it leaves on purpose.
	stay = "stay"
)

// Supervise is the body of the supervisor process: it starts a cluster and
// keeps it until ctx ends. Steps: take the directory, start, tell the starter,
// follow the components, stop. Progress goes to opts.Out, which is closed by
// onReady once everything runs.
//
// lease is connected to the starter. If it ends before the starter said that it
// leaves on purpose, the starter was killed, and the start is given up: nobody
// would know of the lab.
func Supervise(ctx context.Context, dir string, opts mc.Options, lease io.Reader, onReady func()) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	lock, err := takeDir(ctx, dir, opts.Clock)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // The process ends.

	state := &State{Version: StateVersion, Phase: PhaseStarting, Dir: dir, PID: os.Getpid(), StartedAt: opts.Clock.Now(), Keep: opts.KeepDir}
	if err := state.write(); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}

	log, err := openLog(dir)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	opts.Log = log

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go watchLease(lease, cancel)

	opts.Dir = filepath.Join(dir, clusterDir)
	if !opts.KeepDir {
		opts.Remove = append(opts.Remove, dir)
	}
	cluster, err := mc.Start(ctx, opts)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("starting the lab: %w", cause)
		}
		if opts.KeepDir {
			return err
		}
		return errors.Join(err, os.RemoveAll(dir))
	}

	state.Phase = PhaseRunning
	state.describe(cluster, opts.Clock.Now())
	if err := state.write(); err != nil {
		return errors.Join(err, stop(ctx, cluster))
	}
	onReady()
	follow(ctx, cluster, state)
	return stop(ctx, cluster)
}

// openLog starts the supervisor's log; a crash of the supervisor itself is
// written there, too, because its stderr is gone by then.
func openLog(dir string) (*logrus.Logger, error) {
	f, err := os.OpenFile(filepath.Join(dir, LogFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the supervisor's log: %w", err)
	}
	if err := debug.SetCrashOutput(f, debug.CrashOptions{}); err != nil {
		return nil, fmt.Errorf("directing crashes to the supervisor's log: %w", err)
	}
	log := logrus.New()
	log.SetOutput(f)
	return log, nil
}

// takeDir creates the directory and locks it. A directory without a living
// supervisor is a leftover and is replaced.
func takeDir(ctx context.Context, dir string, c clock.WithTicker) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // Like any XDG directory.
		return nil, fmt.Errorf("creating %s: %w", filepath.Dir(dir), err)
	}
	tick := c.NewTicker(lockPoll)
	defer tick.Stop()
	for range lockTries {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("creating %s: %w", dir, err)
		}
		f, err := os.Open(dir)
		if err != nil {
			return nil, fmt.Errorf("opening %s: %w", dir, err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, emptyDir(dir)
		}
		closeErr := f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking %s: %w", dir, errors.Join(err, closeErr))
		}
		// Perhaps only somebody looking at the state: that takes microseconds.
		select {
		case <-tick.C():
		case <-ctx.Done():
			return nil, fmt.Errorf("locking %s: %w", dir, ctx.Err())
		}
	}
	return nil, fmt.Errorf("locking %s: a lab is running there already", dir)
}

// onlyOurs says whether a directory holds nothing but what a lab makes: --dir
// may be a mistake.
func onlyOurs(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("looking into %s: %w", dir, err)
	}
	for _, e := range entries {
		switch e.Name() {
		case stateFile, stateFile + ".new", clusterDir, LogFile:
		default:
			return fmt.Errorf("using %s: it holds %s, which is not the lab's; choose another --dir", dir, e.Name())
		}
	}
	return nil
}

// emptyDir removes what a killed lab left.
func emptyDir(dir string) error {
	if err := onlyOurs(dir); err != nil {
		return err
	}
	for _, name := range []string{stateFile, stateFile + ".new", clusterDir, LogFile} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("removing leftovers in %s: %w", dir, err)
		}
	}
	return nil
}

var errStarterGone = errors.New("the command that started the lab has ended")

func watchLease(lease io.Reader, cancel context.CancelCauseFunc) {
	line, err := bufio.NewReader(lease).ReadString('\n')
	if err != nil || line != stay+"\n" {
		cancel(errStarterGone)
	}
}

func (s *State) describe(c *mc.Cluster, now time.Time) {
	s.GuardPID = c.GuardPID()
	s.Parts = c.Parts().String()
	s.ControllerManager = c.Parts().Has(mc.ControllerManager)
	s.URL = c.PublicURL()
	s.Kubeconfig = c.KubeconfigPath()
	s.Hosts = c.Hosts()
	s.InsideKubeconfig = c.InsideKubeconfigPath()
	s.ServedAfter = c.Served().Round(time.Millisecond).Seconds()
	s.ReadyAfter = now.Sub(s.StartedAt).Round(time.Millisecond).Seconds()
	s.components(c)
}

func (s *State) components(c *mc.Cluster) {
	s.Components = c.Components()
	s.Ended = nil
	for _, x := range s.Components {
		if x.State == mc.StateEnded {
			s.Ended = append(s.Ended, x.Name)
		}
	}
}

// follow keeps the state document true until the lab is to end.
func follow(ctx context.Context, c *mc.Cluster, state *State) {
	for {
		select {
		case <-ctx.Done():
			state.Phase = PhaseStopping
			_ = state.write() // The directory is about to go.
			return
		case <-c.Changes():
			state.components(c)
			_ = state.write() // The next change writes again; the lab itself is fine.
		}
	}
}

func stop(ctx context.Context, c *mc.Cluster) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	return c.Stop(ctx)
}
