package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const (
	// installed is where the agent's program is copied to: /usr is read-only on some guests, and the seed disk may go.
	installed = "/opt/capk/vm-agent"
	// stateDir survives reboots.
	stateDir = "/var/lib/capk"
	// problemsFile is what the last setup could not do, for the running agent to report. It is for one boot.
	problemsFile = "/run/capk/problems.json"
	// configFile is the configuration of the running agent.
	configFile = stateDir + "/machine.json"

	unitName = "capk-agent.service"
	unitPath = "/etc/systemd/system/" + unitName
)

// undone is what a setup could not do.
type undone struct {
	Problems []string `json:"problems,omitempty"`
	// NotMounted are the places whose disk or share is missing.
	NotMounted []string `json:"notMounted,omitempty"`
}

// Setup prepares the guest for its part. It runs on every boot, before cloud-init's or Ignition's own work where the image allows it, and
// changes nothing that is already right. What fails is reported and does not stop the rest: a guest without its NTP servers can still say so.
//
//  1. resolver, time servers, iSCSI identity
//  2. the root file system grows to its disk
//  3. data disks and shares are mounted, and the places of those that cannot be are covered, so that nothing is written below them
//  4. the agent itself is installed and started
func Setup(ctx context.Context, sys *System, seedDir, program string, log logrus.FieldLogger) error {
	config, err := readConfig(filepath.Join(seedDir, "machine.json"))
	if err != nil {
		return err
	}
	left := undone{}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"setting the resolver", func(ctx context.Context) error { return resolver(ctx, sys, config) }},
		{"setting the time servers", func(ctx context.Context) error { return timeServers(ctx, sys, config) }},
		{"setting the iSCSI initiator name", func(context.Context) error { return iscsi(sys, config) }},
		{"growing the root file system", func(ctx context.Context) error { return growRoot(ctx, sys) }},
		{"mounting disks and shares", func(ctx context.Context) (err error) {
			left.NotMounted, err = mounts(ctx, sys, config.Mounts)
			return err
		}},
	} {
		if err := step.do(ctx); err != nil {
			problem := fmt.Sprintf("%s: %v", step.what, err)
			log.Error(problem)
			left.Problems = append(left.Problems, problem)
		}
	}
	raw, err := json.Marshal(left)
	if err != nil {
		return fmt.Errorf("encoding problems: %w", err)
	}
	if err := sys.write(problemsFile, string(raw), 0o644); err != nil {
		return err
	}
	return install(ctx, sys, config, program)
}

// readConfig reads machine.json from the seed disk.
func readConfig(path string) (*contract.GuestConfig, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the machine's configuration: %w", err)
	}
	config := &contract.GuestConfig{}
	if err := json.Unmarshal(raw, config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

// resolver sets DNS servers at operating system level. Without servers in the configuration those of DHCP stay.
func resolver(ctx context.Context, sys *System, config *contract.GuestConfig) error {
	if len(config.DNSServers) == 0 && len(config.SearchDomains) == 0 {
		return nil
	}
	if !sys.hasUnit("systemd-resolved.service") {
		var b strings.Builder
		for _, s := range config.DNSServers {
			b.WriteString("nameserver " + s + "\n")
		}
		if len(config.SearchDomains) > 0 {
			b.WriteString("search " + strings.Join(config.SearchDomains, " ") + "\n")
		}
		return sys.write("/etc/resolv.conf", b.String(), 0o644)
	}
	// "~." makes these servers the ones for every name, before those of a link.
	text := "[Resolve]\nDNS=" + strings.Join(config.DNSServers, " ") + "\nDomains=" + strings.Join(append(append([]string{}, config.SearchDomains...), "~."), " ") + "\n"
	if err := sys.write("/etc/systemd/resolved.conf.d/10-capk.conf", text, 0o644); err != nil {
		return err
	}
	return tryRestart(ctx, sys, "systemd-resolved.service")
}

// timeServers sets NTP servers for whichever time service the guest has.
func timeServers(ctx context.Context, sys *System, config *contract.GuestConfig) error {
	if len(config.NTPServers) == 0 {
		return nil
	}
	switch {
	case sys.hasUnit("chrony.service") || sys.hasUnit("chronyd.service"):
		var b strings.Builder
		for _, s := range config.NTPServers {
			b.WriteString("server " + s + " iburst\n")
		}
		if err := sys.write("/etc/chrony/sources.d/capk.sources", b.String(), 0o644); err != nil {
			return err
		}
		return errors.Join(tryRestart(ctx, sys, "chrony.service"), tryRestart(ctx, sys, "chronyd.service"))
	case sys.hasUnit("systemd-timesyncd.service"):
		text := "[Time]\nNTP=" + strings.Join(config.NTPServers, " ") + "\nFallbackNTP=\n"
		if err := sys.write("/etc/systemd/timesyncd.conf.d/10-capk.conf", text, 0o644); err != nil {
			return err
		}
		return tryRestart(ctx, sys, "systemd-timesyncd.service")
	default:
		return errors.New("the guest has neither chrony nor systemd-timesyncd")
	}
}

// tryRestart restarts a unit that runs; one that starts later reads the new settings anyway. It does not wait: during boot the unit may be queued behind us.
func tryRestart(ctx context.Context, sys *System, unit string) error {
	if !sys.hasUnit(unit) {
		return nil
	}
	_, err := sys.Run(ctx, "systemctl", "--no-block", "try-restart", unit)
	return err
}

// iscsi writes the initiator's name, by which storage arrays know the machine. Only root may read it, as the iSCSI tools have it.
func iscsi(sys *System, config *contract.GuestConfig) error {
	if config.ISCSIInitiatorName == "" {
		return nil
	}
	return sys.write("/etc/iscsi/initiatorname.iscsi", "InitiatorName="+config.ISCSIInitiatorName+"\n", 0o600)
}

// growRoot lets an ext4 file system that fills a whole disk grow to the disk's size. Partitioned images are grown by cloud-init or the image itself.
func growRoot(ctx context.Context, sys *System) error {
	out, err := sys.Run(ctx, "findmnt", "-n", "-o", "SOURCE,FSTYPE", "/")
	if err != nil {
		return err
	}
	fields := strings.Fields(out)
	if len(fields) != 2 || fields[1] != "ext4" || !strings.HasPrefix(fields[0], "/dev/") {
		return nil
	}
	kind, err := sys.Run(ctx, "lsblk", "-n", "-d", "-o", "TYPE", fields[0])
	if err != nil {
		return err
	}
	if strings.TrimSpace(kind) != "disk" {
		return nil
	}
	_, err = sys.Run(ctx, "resize2fs", fields[0])
	return err
}

// install copies the agent to the guest's disk and starts it as a service, on this and every later boot.
func install(ctx context.Context, sys *System, config *contract.GuestConfig, program string) error {
	raw, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encoding the configuration: %w", err)
	}
	if err := sys.write(configFile, string(raw), 0o600); err != nil {
		return err
	}
	if err := copyProgram(program, sys.path(installed)); err != nil {
		return err
	}
	if err := sys.write(unitPath, unit(), 0o644); err != nil {
		return err
	}
	if _, err := sys.Run(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	if _, err := sys.Run(ctx, "systemctl", "enable", unitName); err != nil {
		return err
	}
	_, err = sys.Run(ctx, "systemctl", "--no-block", "restart", unitName)
	return err
}

func unit() string {
	return `[Unit]
Description=Tells the management cluster how this machine is
DefaultDependencies=no
After=local-fs.target
Conflicts=shutdown.target
Before=shutdown.target

[Service]
ExecStart=` + installed + ` run
Restart=always
RestartSec=2
# It has to be heard when everything else is short of memory.
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`
}

// copyProgram copies an executable in one step, unless it is the same already.
func copyProgram(from, to string) error {
	if from == to {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("opening the agent: %w", err)
	}
	defer func() { _ = in.Close() }()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // programs are readable
		return fmt.Errorf("making a directory for the agent: %w", err)
	}
	out, err := os.OpenFile(to+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755) //nolint:gosec // a program
	if err != nil {
		return fmt.Errorf("installing the agent: %w", err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("copying the agent: %w", err)
	}
	if err := os.Rename(to+".new", to); err != nil {
		return fmt.Errorf("installing the agent: %w", err)
	}
	return nil
}
