package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const (
	// trialCode is what the probe guest writes to the exit device, and trialStatus what QEMU then ends with.
	trialCode   = 0x2a
	trialPort   = 0xf4
	trialStatus = trialCode<<1 | 1
	// trialROMBytes is the size of the smallest firmware QEMU maps below 1 MiB.
	trialROMBytes = 64 << 10
	// trialWork is how long the guest's processor may work until it has to be at its end. It needs some milliseconds; what it waits for a core of
	// a busy host does not count, or such a host would be taken for one without KVM. A hypervisor below the host that takes time away unseen does count.
	trialWork = 200 * time.Millisecond
	// trialLook is how often that is looked at: the kernel tells nobody when a thread of another process has worked for so long.
	trialLook = 20 * time.Millisecond
	// trialTime ends the trial of a guest that neither works nor ends. It is long: after a reboot of a host, all of its virtual machines start at once.
	trialTime = 20 * time.Second
	// vcpu is the name that QEMU gives the thread of the guest's only processor, with debug-threads=on.
	vcpu = "CPU 0/KVM"
)

// Verdict says which accelerator a host gets.
type Verdict struct {
	Accelerator contract.Accelerator `json:"accelerator"`
	// Reason is for people.
	Reason string `json:"reason"`
	// Boot is the boot id of the host the trial ran on: another boot may have another kernel.
	Boot string `json:"boot"`
}

// Trial finds out whether KVM runs guest code on this host. That the device file opens proves nothing: nested virtualization
// may well run real-mode code and then hang for ever when paging comes on, with a whole core busy.
type Trial struct {
	// QEMU is the program.
	QEMU string
	// Device is /dev/kvm.
	Device string
	// Cache keeps the verdict.
	Cache string
	// BootID is the file with the host's boot id.
	BootID string
	// Scratch is a directory for the guest's firmware.
	Scratch string
}

// Decide returns the accelerator to use:
//
//  1. what was chosen, if that is not "auto";
//  2. what an earlier trial on this boot of the host said;
//  3. what a trial says now, which is kept for the next time if it says something of the host, and there is room.
func (t Trial) Decide(ctx context.Context, chosen contract.Accelerator) (*Verdict, error) {
	switch chosen {
	case contract.AcceleratorKVM, contract.AcceleratorTCG:
		return &Verdict{Accelerator: chosen, Reason: "chosen by configuration"}, nil
	case contract.AcceleratorAuto, "":
	default:
		return nil, fmt.Errorf("%w: accelerator %q is none of %s, %s and %s", contract.ErrConfig, chosen,
			contract.AcceleratorAuto, contract.AcceleratorKVM, contract.AcceleratorTCG)
	}
	boot := ""
	if raw, err := os.ReadFile(t.BootID); err == nil {
		boot = strings.TrimSpace(string(raw))
	}
	if kept, ok := t.recall(boot); ok {
		return kept, nil
	}
	found := &Verdict{Accelerator: contract.AcceleratorKVM, Reason: "a probe guest ran", Boot: boot}
	if err := t.run(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("trying KVM: %w", ctx.Err())
		}
		found.Accelerator, found.Reason = contract.AcceleratorTCG, err.Error()
		if errors.Is(err, errUnsure) {
			return found, nil
		}
	}
	if err := t.keep(found); err != nil {
		// Most often the disk is full, and who makes the machine's own disks says that better. The next start tries again.
		found.Reason += "; " + err.Error()
	}
	return found, nil
}

func (t Trial) recall(boot string) (*Verdict, bool) {
	raw, err := os.ReadFile(t.Cache)
	if err != nil {
		return nil, false
	}
	v := &Verdict{}
	if err := json.Unmarshal(raw, v); err != nil || boot == "" || v.Boot != boot {
		return nil, false
	}
	return v, v.Accelerator == contract.AcceleratorKVM || v.Accelerator == contract.AcceleratorTCG
}

func (t Trial) keep(v *Verdict) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding the verdict on KVM: %w", err)
	}
	if err := os.WriteFile(t.Cache+".new", raw, 0o600); err != nil {
		return fmt.Errorf("keeping the verdict on KVM: %w", err)
	}
	if err := os.Rename(t.Cache+".new", t.Cache); err != nil {
		return fmt.Errorf("keeping the verdict on KVM: %w", err)
	}
	return nil
}

// run boots the probe guest. Its end with the agreed status is the only success.
func (t Trial) run(ctx context.Context) error {
	if _, err := os.Stat(t.Device); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("this host has no %s", t.Device)
	}
	rom := filepath.Join(t.Scratch, "probe.rom")
	if err := os.WriteFile(rom, probeROM(), 0o600); err != nil {
		return fmt.Errorf("writing the probe guest, %w: %w", errUnsure, err)
	}
	limited, cancel := context.WithTimeoutCause(ctx, trialTime, fmt.Errorf("the probe guest did not come to its end within %s, %w", trialTime, errUnsure))
	defer cancel()
	limited, stop := context.WithCancelCause(limited)
	defer stop(nil)
	args := append(accelerate(contract.AcceleratorKVM), "-name", "probe,debug-threads=on",
		"-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-machine", "pc", "-m", "16M", "-bios", rom,
		"-device", fmt.Sprintf("isa-debug-exit,iobase=%#x,iosize=1", trialPort))
	said := &bytes.Buffer{}
	program := exec.CommandContext(limited, t.QEMU, args...) //nolint:gosec // an operator configures the program
	program.Stdout, program.Stderr = said, said
	err := program.Start()
	if err == nil {
		go stopOverworked(limited, program.Process.Pid, stop)
		err = program.Wait()
	}
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended) && ended.ExitCode() == trialStatus:
		return nil
	case limited.Err() != nil:
		return context.Cause(limited)
	default:
		first, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n")
		return fmt.Errorf("the probe guest did not run: %w: %s", errors.Join(err, errNotRun), first)
	}
}

// stopOverworked ends the trial of a guest whose processor has worked for longer than it needs: it hangs, or is interpreted. Where the thread cannot be
// looked at, the limit in time remains.
func stopOverworked(ctx context.Context, pid int, stop context.CancelCauseFunc) {
	look := time.NewTicker(trialLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		if worked, _ := workOf(pid, vcpu); worked > trialWork {
			stop(fmt.Errorf("the probe guest did not come to its end in %s of work", worked))
			return
		}
	}
}

// workOf is the processor time that a thread of a process has had, if there is one of that name.
func workOf(pid int, name string) (time.Duration, bool) {
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		return 0, false
	}
	for _, thread := range threads {
		if stat, err := thread.Stat(); err == nil && stat.Comm == name {
			return time.Duration(stat.CPUTime() * float64(time.Second)).Round(time.Millisecond), true
		}
	}
	return 0, false
}

var (
	errNotRun = errors.New("unexpected end")
	// errUnsure says nothing of the host: it may have been busy, or full. Kept, it would have all later machines emulated until the host's next reboot.
	errUnsure = errors.New("which may pass")
)
