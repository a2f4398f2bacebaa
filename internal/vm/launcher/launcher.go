package launcher

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/disk"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/health"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/image"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/network"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/qemu"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/seed"
)

// seedSerial is the serial number of the seed disk.
const seedSerial = "seed"

// launcher is one run.
type launcher struct {
	Options
	reports *reporter
	config  *contract.Config
	health  *health.State
}

// parts is what a machine is put together from.
type parts struct {
	image     *image.Image
	bootstrap *seed.Bootstrap
	disks     []*disk.File
	lease     *network.Lease
	resolver  *network.Resolver
	seed      *seed.Seed
	verdict   *qemu.Verdict
}

// Run runs the machine until it ends and returns the exit code of contract:
//
//  1. It decodes the configuration and begins to answer probes.
//  2. It prepares image, bootstrap data, disks, network, accelerator and seed.
//  3. It starts QEMU and reports it.
//  4. It watches, reports changes, and when the context ends powers the guest off.
//  5. It reports the end, in the log and in the termination message.
func Run(ctx context.Context, o Options) int {
	l := &launcher{Options: o, reports: &reporter{out: o.Out, clock: o.Clock}}
	err := l.run(ctx)
	code := exit.Code(err)
	if ctx.Err() != nil && code == contract.ExitInternal {
		// Preparing was interrupted by the end of the pod: nothing ran, nothing is lost.
		err, code = nil, contract.ExitPowerOff
	}
	report := contract.Report{Kind: contract.ReportStopped, Code: code}
	if err != nil {
		report.Message = err.Error()
		if code != contract.ExitGuest && code != contract.ExitKilled && code != contract.ExitSilent {
			report.Kind = contract.ReportFailed
		}
		l.Log.WithError(err).WithField("code", code).Error("the machine ended")
		l.lastWords(err)
	}
	if err := l.reports.say(report); err != nil {
		l.Log.WithError(err).Error("reporting the end")
	}
	return code
}

func (l *launcher) run(ctx context.Context) error {
	config, err := decode(l.Config)
	if err != nil {
		return err
	}
	l.config = config
	if err := os.MkdirAll(l.Paths.Run, 0o700); err != nil {
		return fmt.Errorf("making %s: %w", l.Paths.Run, err)
	}
	// Probes are answered, and leases given, until the very end: longer than the context lasts.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	if err := l.answerProbes(background); err != nil {
		return err
	}
	parts, err := l.prepare(ctx)
	if err != nil {
		return err
	}
	if err := l.serveLease(background, parts); err != nil {
		return err
	}
	return l.boot(ctx, parts)
}

func (l *launcher) answerProbes(ctx context.Context) error {
	l.health = health.New(l.Clock, health.Rules{
		Role: l.config.Role, Boot: seconds(l.config.BootSeconds), Silence: seconds(l.config.SilenceSeconds),
	})
	server, err := health.Listen(l.Paths.HealthSocket(), l.health)
	if err != nil {
		return err
	}
	go func() {
		if err := server.Serve(ctx); err != nil {
			l.Log.WithError(err).Error("probes are not answered any more")
		}
	}()
	return nil
}

// prepare makes everything QEMU needs. The trial of KVM and the disks take longest, so they go side by side.
func (l *launcher) prepare(ctx context.Context) (*parts, error) {
	p := &parts{}
	var err error
	if p.image, err = image.Find(l.Paths.Images, l.config.Image); err != nil {
		return nil, err
	}
	if p.bootstrap, err = l.readBootstrap(p.image); err != nil {
		return nil, err
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		p.verdict, err = l.decide(ctx)
		return err
	})
	both.Go(func() (err error) {
		p.disks, err = l.makeDisks(ctx, p.image)
		return err
	})
	p.lease, err = network.Setup(network.Options{
		Bridge: l.Paths.Bridge, Tap: l.Paths.Tap, State: l.Paths.run("lease.json"), Sys: l.Paths.Sys,
	})
	if err == nil {
		p.resolver, err = l.resolver()
	}
	if err == nil {
		p.seed, err = l.writeSeed(p)
	}
	if waitErr := both.Wait(); err == nil {
		err = waitErr
	}
	return p, err
}

func (l *launcher) readBootstrap(base *image.Image) (*seed.Bootstrap, error) {
	b, err := seed.ReadBootstrap(l.Paths.Bootstrap)
	if err != nil {
		return nil, err
	}
	if !base.Understands(b.Format) {
		return nil, exit.Errorf(contract.ExitBootstrap, "image %s does not understand bootstrap data of format %s, only %v; "+
			"choose another image or set spec.format of the KubeadmConfig", base.Name, b.Format, base.Formats)
	}
	return b, nil
}

func (l *launcher) decide(ctx context.Context) (*qemu.Verdict, error) {
	chosen := l.config.Accelerator
	if l.Accelerator != "" {
		chosen = l.Accelerator
	}
	v, err := qemu.Trial{
		QEMU: l.Paths.QEMU, Device: l.Paths.KVM, Scratch: l.Paths.Run, BootID: l.Paths.HostBoot,
		// On the disk, so that a restart of the container does not try again.
		Cache: l.Paths.Disks + "/accelerator.json",
	}.Decide(ctx, chosen)
	if err != nil {
		return nil, err
	}
	l.Log.WithField("accelerator", v.Accelerator).WithField("reason", v.Reason).Info("chose an accelerator")
	return v, nil
}

// makeDisks makes the disks of the configuration, in its order.
func (l *launcher) makeDisks(ctx context.Context, base *image.Image) ([]*disk.File, error) {
	store := disk.Store{QEMUImg: l.Paths.QEMUImg}
	files := make([]*disk.File, 0, len(l.config.Disks))
	for _, d := range l.config.Disks {
		var file *disk.File
		var err error
		if d.Name == contract.DiskRoot {
			file, err = store.Root(ctx, l.Paths.dir(d), d.Name, base, d.SizeBytes)
		} else {
			file, err = store.Data(l.Paths.dir(d), d.Name, d.SizeBytes)
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("making disk %s: %w", d.Name, ctx.Err())
			}
			return nil, err
		}
		l.Log.WithField("disk", d.Name).WithField("bytes", file.Bytes).WithField("created", file.Created).Info("has a disk")
		files = append(files, file)
	}
	return files, nil
}

// resolver is the configuration's, or else the pod's.
func (l *launcher) resolver() (*network.Resolver, error) {
	g := l.config.Guest
	if len(g.DNSServers) > 0 {
		return &network.Resolver{Servers: g.DNSServers, Search: g.SearchDomains}, nil
	}
	r, err := network.ReadResolver(l.Paths.ResolvConf)
	if err != nil {
		return nil, err
	}
	if len(g.SearchDomains) > 0 {
		r.Search = g.SearchDomains
	}
	return r, nil
}

func (l *launcher) writeSeed(p *parts) (*seed.Seed, error) {
	guest := l.config.Guest
	guest.Format = p.bootstrap.Format
	guest.DNSServers, guest.SearchDomains = p.resolver.Servers, p.resolver.Search
	if guest.Hostname == "" {
		guest.Hostname = l.config.Name
	}
	return seed.Write(l.Paths.Run, &seed.Input{
		Config: l.config, Guest: guest, Address: p.lease.Address.Addr(), MAC: p.lease.MAC, Bootstrap: p.bootstrap, Agent: l.Paths.Agent,
	})
}

func (l *launcher) serveLease(ctx context.Context, p *parts) error {
	server, err := network.Listen(l.Paths.Bridge, network.Offer{
		Lease: p.lease, Hostname: l.config.Name, Resolver: *p.resolver, NTPServers: l.config.Guest.NTPServers,
	}, l.Log)
	if err != nil {
		return err
	}
	go func() {
		if err := server.Serve(ctx); err != nil {
			l.Log.WithError(err).Error("the guest gets no lease any more")
		}
	}()
	return nil
}

// lastWords are what the kubelet shows as the reason of the container's end.
func (l *launcher) lastWords(err error) {
	text := contract.ExitReason(exit.Code(err)) + ": " + err.Error()
	if err := os.WriteFile(l.Paths.TerminationLog, []byte(shorten(text, maxMessageBytes)), 0o600); err != nil {
		l.Log.WithError(err).Warn("writing the termination message")
	}
}
