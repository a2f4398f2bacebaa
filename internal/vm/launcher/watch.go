package launcher

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/qmp"
)

const (
	// commandTime is how long QEMU may take for a command.
	commandTime = 5 * time.Second
	// tick is how often the launcher looks after what takes time: the power button is pressed again, because a guest that
	// still boots does not notice, and a guest that waits for room on the host is let try again.
	tick = 5 * time.Second
	// quitTime is how long QEMU gets to end after it was told to.
	quitTime = 5 * time.Second
)

// watching is what the watch remembers.
type watching struct {
	// guest is what was heard last.
	guest contract.Guest
	heard bool
	// full is since when a disk lacks room on the host, and resumed since when the guest goes on nevertheless: QEMU pauses it again at once if
	// what was to be written still does not fit.
	full, resumed time.Time
	disk          string
	// asked is when the guest was asked to power off, and silent why it counted as dead then; empty for one that was heard.
	asked  time.Time
	silent string
}

// watch reports what changes and ends when QEMU does. When the context ends it asks the guest to power off, and ends QEMU if the
// guest does not listen.
func (g *guest) watch(ctx context.Context) error {
	w := &watching{}
	ticker := g.Clock.NewTicker(tick)
	defer ticker.Stop()
	var deadline clock.Timer
	expired := make(<-chan time.Time)
	ending := ctx.Done()
	for {
		select {
		case <-g.process.Done():
			return g.ended(w)
		case event := <-g.events:
			g.handle(w, event)
		case beat := <-g.beats:
			g.beat(w, beat)
		case <-ending:
			ending = nil
			w.asked = g.Clock.Now()
			if alive, why := g.health.Live(); !alive {
				w.silent = why
			}
			g.Log.WithField("seconds", g.config.ShutdownSeconds).Info("asking the guest to power off")
			g.press(ctx)
			deadline = g.Clock.NewTimer(seconds(g.config.ShutdownSeconds))
			defer deadline.Stop()
			expired = deadline.C()
		case <-expired:
			code, before := contract.ExitKilled, ""
			if w.silent != "" {
				code, before = contract.ExitSilent, w.silent+"; "
			}
			return g.end(ctx, exit.Errorf(code, "%sthe guest did not power off within %d s and was ended", before, g.config.ShutdownSeconds))
		case <-ticker.C():
			if !w.asked.IsZero() {
				g.press(ctx)
			}
			if err := g.retry(ctx, w); err != nil {
				return err
			}
		}
	}
}

// ended says why QEMU is gone.
func (g *guest) ended(w *watching) error {
	how, well := g.process.End(), g.process.Well()
	switch {
	case !w.asked.IsZero() && well && w.silent != "":
		return exit.Errorf(contract.ExitSilent, "%s; the guest powered off when it was asked to", w.silent)
	case !w.asked.IsZero() && well:
		// A warning of QEMU's is no reason to start a guest again that was told to end.
		g.Log.WithField("after", g.Clock.Since(w.asked).Round(time.Millisecond).String()).WithField("said", how).Info("the guest powered off")
		return nil
	case how == "":
		return exit.Errorf(contract.ExitGuest, "the guest powered off without having been asked; it is started again from its disks")
	default:
		return exit.Errorf(contract.ExitGuest, "QEMU ended: %s; the guest is started again from its disks", how)
	}
}

// handle does what an event of QEMU asks for.
func (g *guest) handle(w *watching, e qmp.Event) {
	log := g.Log.WithField("event", e.Name)
	switch e.Name {
	case "RESET":
		log.Info("the guest reboots")
		g.health.Started()
		w.heard = false
	case "SHUTDOWN", "STOP", "RESUME", "POWERDOWN", "GUEST_PANICKED", "WATCHDOG":
		log.WithField("data", string(e.Data)).Info("QEMU says")
		switch e.Name {
		case "STOP":
			w.resumed = time.Time{}
		case "RESUME":
			w.resumed = g.Clock.Now()
		}
	case "BLOCK_IO_ERROR":
		var data struct {
			Device  string `json:"device"`
			Node    string `json:"node-name"`
			NoSpace bool   `json:"nospace"`
			Reason  string `json:"reason"`
		}
		if err := json.Unmarshal(e.Data, &data); err != nil {
			log.WithError(err).Warn("cannot read an event")
			return
		}
		log.WithField("disk", data.Node).WithField("reason", data.Reason).Error("a disk has an error")
		g.trouble(w, data.Node, data.Reason, data.NoSpace)
	}
}

// trouble reports an error of a disk. For lack of room QEMU has paused the guest, and it goes on when there is some. Any other error the guest is told, and does about it what it would
// do on a machine of metal: it is no reason to keep traffic away, because nothing would ever say that it is over.
func (g *guest) trouble(w *watching, node, reason string, full bool) {
	text := fmt.Sprintf("%s: %s", node, reason)
	if full {
		text = node + ": the host has no room; the guest is paused until there is some"
		if w.full.IsZero() {
			w.full = g.Clock.Now()
		}
		w.disk, w.resumed = text, time.Time{}
		g.health.Trouble(text)
	}
	told := w.told()
	told.Problems = append(slices.Clone(told.Problems), text)
	g.tell(told)
}

// told is what to report of the guest, whether or not it has said anything.
func (w *watching) told() contract.Guest {
	told := w.guest
	if !w.heard {
		told.Bootstrap = contract.BootstrapRunning
	}
	return told
}

// retry lets a guest go on that was paused for lack of room, notes when it does, and gives up when that takes too long. One that goes on is left
// alone, whatever it says meanwhile: its words may be older than the pause.
func (g *guest) retry(ctx context.Context, w *watching) error {
	switch {
	case w.full.IsZero():
		return nil
	case !w.resumed.IsZero():
		if g.Clock.Since(w.resumed) >= tick {
			g.Log.Info("there is room on the host again")
			w.full = time.Time{}
			g.health.Trouble("")
			g.tell(w.told())
		}
		return nil
	case g.Clock.Since(w.full) > seconds(g.config.SilenceSeconds):
		return g.end(ctx, exit.Errorf(contract.ExitDiskFull, "%s, and there was none for %d s; free space on the host, the machine then starts by itself",
			w.disk, g.config.SilenceSeconds))
	}
	if err := g.command(ctx, "cont"); err != nil {
		g.Log.WithError(err).Warn("letting the guest go on")
	}
	return nil
}

// beat takes in what the agent says. Bootstrapping only moves forward, whatever a restarted agent thinks.
func (g *guest) beat(w *watching, beat contract.Guest) {
	if w.guest.Bootstrap == contract.BootstrapSucceeded {
		beat.Bootstrap, beat.BootstrapMessage, beat.BootstrapLog = contract.BootstrapSucceeded, "", ""
	}
	w.guest, w.heard = beat, true
	g.health.Beat(beat)
	if !w.full.IsZero() {
		return // the lack of room was told, and is not over yet
	}
	g.tell(beat)
}

func (g *guest) tell(now contract.Guest) {
	if err := g.reports.guest(now); err != nil {
		g.Log.WithError(err).Error("reporting a change")
	}
}

// press presses the power button.
func (g *guest) press(ctx context.Context) {
	if err := g.command(ctx, "system_powerdown"); err != nil {
		g.Log.WithError(err).Warn("pressing the power button")
	}
}

func (g *guest) command(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTime)
	defer cancel()
	_, err := g.monitor.Execute(ctx, name, nil)
	return err
}

// end ends QEMU: orderly, so that it writes out what it holds, or else by force.
func (g *guest) end(ctx context.Context, why error) error {
	if err := g.command(ctx, "quit"); err != nil {
		g.Log.WithError(err).Warn("telling QEMU to quit")
	}
	timer := g.Clock.NewTimer(quitTime)
	defer timer.Stop()
	select {
	case <-g.process.Done():
		return why
	case <-timer.C():
	}
	if err := g.kill(); err != nil {
		return fmt.Errorf("%w; %w", why, err)
	}
	return why
}
