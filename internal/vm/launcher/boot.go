package launcher

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/qemu"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/qmp"
)

const (
	// greetingTime is how long QEMU may take to answer on its monitor. It does so before any guest code runs.
	greetingTime = 60 * time.Second
	// eventRoom is how many events may wait while the launcher is busy.
	eventRoom = 1024
)

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// machine puts the parts together in QEMU's terms.
func (l *launcher) machine(p *parts) *qemu.Machine {
	m := &qemu.Machine{
		Name: l.config.Name, Identity: l.config.ProviderID, CPUs: l.config.CPUs, MemoryBytes: l.config.MemoryBytes,
		Accelerator: p.verdict.Accelerator, Kernel: p.image.Kernel, Initrd: p.image.Initrd, Cmdline: p.image.Cmdline,
		Net:           qemu.Net{Tap: l.Paths.Tap, MAC: p.lease.MAC, MTU: p.lease.MTU, VHost: exists(l.Paths.VHostNet)},
		MonitorSocket: l.Paths.run("monitor.sock"), AgentSocket: l.Paths.run("agent.sock"), ConsoleSocket: l.Paths.run("console.sock"),
		// The first file that QEMU inherits.
		ConsoleLog: "/dev/fd/3",
	}
	for i, d := range l.config.Disks {
		m.Drives = append(m.Drives, qemu.Drive{Serial: d.Name, Path: p.disks[i].Path, Format: p.disks[i].Format})
	}
	m.Drives = append(m.Drives, qemu.Drive{Serial: seedSerial, Path: p.seed.Disk, Format: "raw", ReadOnly: true})
	if p.seed.Ignition != "" {
		for _, name := range []string{"opt/com.coreos/config", "opt/org.flatcar-linux/config"} {
			m.Files = append(m.Files, qemu.File{Name: name, Path: p.seed.Ignition})
		}
	}
	for _, s := range l.config.Shares {
		m.Shares = append(m.Shares, qemu.Share{Tag: s.Tag, Path: filepath.Join(l.Paths.Shares, s.Tag)})
	}
	return m
}

// guest is a running QEMU with all that connects the launcher to it.
type guest struct {
	*launcher
	process *qemu.Process
	monitor *qmp.Client
	events  chan qmp.Event
	beats   chan contract.Guest
	// sockets are closed at the end.
	sockets []net.Listener
}

// boot starts QEMU, reports that guest code runs, and watches until the end. It listens where QEMU connects, so that what QEMU says
// first is not missed.
func (l *launcher) boot(ctx context.Context, p *parts) (err error) {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("starting QEMU: %w", err)
	}
	m := l.machine(p)
	g := &guest{launcher: l, events: make(chan qmp.Event, eventRoom), beats: make(chan contract.Guest, 1)}
	defer g.close()
	monitor, err := g.listen(m.MonitorSocket)
	if err != nil {
		return err
	}
	agent, err := g.listen(m.AgentSocket)
	if err != nil {
		return err
	}
	if err := g.start(ctx, m); err != nil {
		return err
	}
	go g.hear(agent)
	if err := g.greet(ctx, monitor); err != nil {
		return err
	}
	l.health.Format(p.bootstrap.Format)
	l.health.Started()
	defer l.health.Ended()
	if err := l.reports.say(contract.Report{
		Kind: contract.ReportStarted, Address: p.lease.Address.Addr().String(), Accelerator: p.verdict.Accelerator,
		Milliseconds: l.Clock.Since(l.Started).Milliseconds(),
	}); err != nil {
		return errors.Join(err, g.kill())
	}
	return g.watch(ctx)
}

func (g *guest) listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing a socket of an earlier start: %w", err)
	}
	listener, err := net.Listen("unix", path) //nolint:noctx // listening does not wait
	if err != nil {
		return nil, fmt.Errorf("making a socket for QEMU: %w", err)
	}
	g.sockets = append(g.sockets, listener)
	return listener, nil
}

func (g *guest) start(ctx context.Context, m *qemu.Machine) error {
	log, err := openConsole(g.Paths.Disks, consoleBytes)
	if err != nil {
		return err
	}
	pipe, err := log.pipe()
	if err != nil {
		return errors.Join(err, log.Close())
	}
	g.process, err = qemu.Start(ctx, g.Paths.QEMU, m.Args(), pipe)
	err = errors.Join(err, pipe.Close())
	if err != nil {
		return exit.Errorf(contract.ExitQEMU, "%w", err)
	}
	g.Log.WithField("pid", g.process.PID()).Info("started QEMU")
	return nil
}

// greet waits for QEMU's monitor, or for QEMU's end.
func (g *guest) greet(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), greetingTime)
	defer cancel()
	go func() {
		select {
		case <-g.process.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	release := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer release()
	conn, err := listener.Accept()
	if err == nil {
		g.monitor, err = qmp.New(ctx, conn, qmp.OnEvent(func(e qmp.Event) {
			select {
			case g.events <- e:
			default: // better to lose one than to hold up the answers behind it
			}
		}))
	}
	if err == nil {
		return nil
	}
	if killErr := g.kill(); killErr != nil {
		return errors.Join(err, killErr)
	}
	said := g.process.End()
	return exit.Errorf(qemu.Failure(said), "QEMU did not start: %w: %s", err, said)
}

// hear reads the agent's lines. Only the newest counts when the launcher is busy.
func (g *guest) hear(listener net.Listener) {
	conn, err := listener.Accept()
	if err != nil {
		return // QEMU ended before it connected, or the launcher does
	}
	defer func() { _ = conn.Close() }()
	reader := bufio.NewReaderSize(conn, maxBeatBytes)
	for {
		line, err := reader.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue // too long to be a beat: skipped, piece by piece
		case err != nil:
			return
		}
		beat, ok := parseBeat(line)
		if !ok {
			continue
		}
		select {
		case <-g.beats:
		default:
		}
		g.beats <- *beat
	}
}

// kill ends QEMU, if it runs, and waits for its end.
func (g *guest) kill() error {
	if err := g.process.Kill(); err != nil {
		return err
	}
	<-g.process.Done()
	return nil
}

func (g *guest) close() {
	for _, s := range g.sockets {
		_ = s.Close()
	}
	if g.monitor != nil {
		_ = g.monitor.Close()
	}
}
