package qemu

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/vmtest"
)

var _ = flag.Bool("update", false, "write golden files")

func qemu(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("qemu-system-x86_64")
	require.NoError(t, err, "this test needs QEMU: apt-get install qemu-system-x86")
	return program
}

func machines() map[string]*Machine {
	small := &Machine{
		Name: "worker-1", Identity: "kvm://blue/worker-1", CPUs: 2, MemoryBytes: 2 << 30, Accelerator: contract.AcceleratorTCG,
		Drives:        []Drive{{Serial: "root", Path: "/var/lib/vm/root.qcow2", Format: "qcow2"}},
		Net:           Net{Tap: "capk-tap", MAC: "02:00:00:00:00:01", MTU: 1450},
		MonitorSocket: "/run/vm/monitor.sock", AgentSocket: "/run/vm/agent.sock", ConsoleSocket: "/run/vm/console.sock",
	}
	full := *small
	full.Name, full.Accelerator = "control,plane", contract.AcceleratorKVM
	full.Kernel, full.Initrd, full.Cmdline = "/images/a/vmlinuz", "/images/a/initrd", "root=/dev/vda console=ttyS0,115200"
	full.Drives = append([]Drive{}, small.Drives...)
	full.Drives = append(full.Drives,
		Drive{Serial: "etcd", Path: "/var/lib/vm-etcd/etcd,1.raw", Format: "raw"},
		Drive{Serial: "seed", Path: "/run/vm/seed.iso", Format: "raw", ReadOnly: true})
	full.Files = []File{{Name: "opt/com.coreos/config", Path: "/run/vm/ignition.json"}}
	for i := range 10 {
		full.Shares = append(full.Shares, Share{Tag: fmt.Sprintf("tag%d", i), Path: fmt.Sprintf("/volumes/tag%d", i)})
	}
	full.Net.VHost = true
	full.ConsoleLog = "/dev/fd/3"
	return map[string]*Machine{"small": small, "full": &full}
}

func TestArgs(t *testing.T) {
	t.Parallel()
	for name, m := range machines() {
		vmtest.Golden(t, name+".txt", lines(m.Args()))
	}
}

// lines writes one option per line.
func lines(args []string) string {
	var text strings.Builder
	for i, arg := range args {
		if i > 0 && strings.HasPrefix(arg, "-") {
			text.WriteString("\n")
		} else if i > 0 {
			text.WriteString(" ")
		}
		text.WriteString(arg)
	}
	return text.String() + "\n"
}

// TestQEMUTakesTheArguments starts the machine with everything on it, without a network, and looks for its answer on the monitor.
func TestQEMUTakesTheArguments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := machines()["full"]
	m.Accelerator, m.Kernel, m.Initrd, m.Cmdline, m.Net.Tap, m.ConsoleLog = contract.AcceleratorTCG, "", "", "", "", ""
	m.MemoryBytes = 64 << 20
	m.ConsoleSocket = filepath.Join(dir, "console.sock")
	for i := range m.Drives {
		m.Drives[i].Path, m.Drives[i].Format = filepath.Join(dir, fmt.Sprintf("disk,%d", i)), "raw"
		require.NoError(t, os.WriteFile(m.Drives[i].Path, make([]byte, 1<<20), 0o600))
	}
	m.Files[0].Path = m.Drives[0].Path
	for i := range m.Shares {
		m.Shares[i].Path = dir
	}
	args := m.Args()
	for i := range args {
		args[i] = strings.NewReplacer("socket,id=monitor,path=/run/vm/monitor.sock", "null,id=monitor",
			"socket,id=agent,path=/run/vm/agent.sock", "null,id=agent").Replace(args[i])
	}
	p, err := Start(t.Context(), qemu(t), append(args, "-S"))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		select {
		case <-p.Done():
			return true
		default:
			_, err := os.Stat(m.ConsoleSocket)
			return err == nil
		}
	}, time.Minute, 10*time.Millisecond)
	select {
	case <-p.Done():
		t.Fatal(p.End())
	case <-time.After(300 * time.Millisecond):
	}
	require.NoError(t, p.Kill())
	<-p.Done()
	assert.Contains(t, p.End(), "killed")
}

func TestAQEMUThatRefusesSaysWhy(t *testing.T) {
	t.Parallel()
	p, err := Start(t.Context(), qemu(t), []string{"-no-such-option"})
	require.NoError(t, err)
	<-p.Done()
	assert.Contains(t, p.End(), "no-such-option")
	_, err = Start(t.Context(), "/no/such/qemu", nil)
	require.Error(t, err)
}

func TestHowAProcessEnded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		script, end string
		well        bool
	}{
		"silent":          {"", "", true},
		"after a warning": {"echo 'warning: host does not support it' >&2", "warning: host does not support it", true},
		"by a signal":     {"echo 'qemu: terminating on signal 15 from pid 1' >&2", "qemu: terminating on signal 15 from pid 1", false},
		"with an error":   {"echo no >&2; exit 1", "exit status 1: no", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Start(t.Context(), "/bin/sh", []string{"-c", test.script})
			require.NoError(t, err)
			<-p.Done()
			assert.Equal(t, test.end, p.End())
			assert.Equal(t, test.well, p.Well())
		})
	}
}

func TestFailure(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]int{
		"could not configure /dev/net/tun (capk-tap): Device or resource busy": contract.ExitNetwork,
		"qcow2: Image is corrupt; cannot be opened read/write":                 contract.ExitDisk,
		"write: No space left on device":                                       contract.ExitDiskFull,
		"qemu-system-x86_64: cannot set up guest memory":                       contract.ExitQEMU,
	} {
		assert.Equal(t, want, Failure(said), said)
	}
}

// TestTheProbeGuestReachesItsEnd runs the guest of the trial in the emulator, which certainly works.
func TestTheProbeGuestReachesItsEnd(t *testing.T) {
	t.Parallel()
	rom := filepath.Join(t.TempDir(), "probe.rom")
	require.NoError(t, os.WriteFile(rom, probeROM(), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := exec.CommandContext(ctx, qemu(t), "-accel", "tcg", "-cpu", "max", "-no-user-config", "-nodefaults", "-display", "none",
		"-no-reboot", "-machine", "pc", "-m", "16M", "-bios", rom, "-device", "isa-debug-exit,iobase=0xf4,iosize=1").Run()
	var ended *exec.ExitError
	require.ErrorAs(t, err, &ended)
	assert.Equal(t, trialStatus, ended.ExitCode())
}

// TestTheGuestsProcessorIsAThreadOfThatName: the name that is looked for is QEMU's own, which says the accelerator behind the slash.
func TestTheGuestsProcessorIsAThreadOfThatName(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	program := exec.CommandContext(ctx, qemu(t), "-accel", "tcg", "-name", "probe,debug-threads=on", "-S", "-no-user-config", "-nodefaults", "-display", "none", "-m", "16M")
	require.NoError(t, program.Start())
	defer func() {
		require.NoError(t, program.Process.Kill())
		require.Error(t, program.Wait())
	}()
	require.Eventually(t, func() bool {
		_, found := workOf(program.Process.Pid, strings.Replace(vcpu, "KVM", "TCG", 1))
		return found
	}, 15*time.Second, 10*time.Millisecond)
}

// pretended writes a program that does what a QEMU on some host would do.
func pretended(t *testing.T, script string) Trial {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "qemu")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "boot"), []byte("one\n"), 0o600))
	return Trial{QEMU: program, Device: program, Cache: filepath.Join(dir, "verdict.json"), BootID: filepath.Join(dir, "boot"), Scratch: dir}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		script string
		want   contract.Accelerator
		reason string
	}{
		"a guest that runs":         {"exit 85", contract.AcceleratorKVM, "ran"},
		"a guest that works on":     {"printf 'CPU 0/KVM' >/proc/$$/comm; while :; do :; done", contract.AcceleratorTCG, "of work"},
		"a guest that resets":       {"exit 0", contract.AcceleratorTCG, "unexpected end"},
		"a device nobody can use":   {"echo 'Could not access KVM kernel module' >&2; exit 1", contract.AcceleratorTCG, "Could not access"},
		"a kernel that is too old":  {"echo 'failed to set MSR 0x10a' >&2; kill -ABRT $$", contract.AcceleratorTCG, "MSR"},
		"something else ended well": {"exit 84", contract.AcceleratorTCG, "exit status 84"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trial := pretended(t, test.script)
			got, err := trial.Decide(t.Context(), contract.AcceleratorAuto)
			require.NoError(t, err)
			assert.Equal(t, test.want, got.Accelerator)
			assert.Contains(t, got.Reason, test.reason)

			trial.QEMU = "/no/such/program"
			kept, err := trial.Decide(t.Context(), "")
			require.NoError(t, err)
			assert.Equal(t, got, kept, "the verdict is kept")
			require.NoError(t, os.WriteFile(trial.BootID, []byte("two\n"), 0o600))
			again, err := trial.Decide(t.Context(), "")
			require.NoError(t, err)
			assert.Equal(t, contract.AcceleratorTCG, again.Accelerator, "after a reboot of the host it is tried again")
			assert.Equal(t, "two", again.Boot)
		})
	}
}

// TestWhatMayPassIsNotKept: a host on which everything starts at once is slow, and no host without KVM; kept, all of its later machines would be emulated.
func TestWhatMayPassIsNotKept(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		script, scratch, reason string
	}{
		"a guest that hangs": {"exec sleep 60", "", "within 20s, which may pass"},
		"a full disk":        {"exit 85", "/no/such/directory", "writing the probe guest, which may pass"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trial := pretended(t, test.script)
			scratch := trial.Scratch
			trial.Scratch = cmp.Or(test.scratch, scratch)
			got, err := trial.Decide(t.Context(), contract.AcceleratorAuto)
			require.NoError(t, err)
			assert.Equal(t, contract.AcceleratorTCG, got.Accelerator)
			assert.Contains(t, got.Reason, test.reason)

			trial.Scratch = scratch
			require.NoError(t, os.WriteFile(trial.QEMU, []byte("#!/bin/sh\nexit 85\n"), 0o700))
			again, err := trial.Decide(t.Context(), contract.AcceleratorAuto)
			require.NoError(t, err)
			assert.Equal(t, contract.AcceleratorKVM, again.Accelerator, "it has passed")
		})
	}
}

// TestAVerdictThatCannotBeKeptIsAVerdict: where a host has no room, the machine's disks say so, and better.
func TestAVerdictThatCannotBeKeptIsAVerdict(t *testing.T) {
	t.Parallel()
	trial := pretended(t, "exit 85")
	trial.Cache = "/no/such/directory/verdict.json"
	got, err := trial.Decide(t.Context(), contract.AcceleratorAuto)
	require.NoError(t, err)
	assert.Equal(t, contract.AcceleratorKVM, got.Accelerator)
	assert.Contains(t, got.Reason, "keeping the verdict on KVM")
}

func TestDecideTriesNothingWhenItNeedNot(t *testing.T) {
	t.Parallel()
	trial := pretended(t, "exit 85")
	trial.Device = "/no/such/device"
	got, err := trial.Decide(t.Context(), "")
	require.NoError(t, err)
	assert.Equal(t, contract.AcceleratorTCG, got.Accelerator)
	assert.Contains(t, got.Reason, "no /no/such/device")
	for _, chosen := range []contract.Accelerator{contract.AcceleratorKVM, contract.AcceleratorTCG} {
		got, err := Trial{QEMU: "/no/such/program"}.Decide(t.Context(), chosen)
		require.NoError(t, err)
		assert.Equal(t, chosen, got.Accelerator)
	}
	_, err = Trial{}.Decide(t.Context(), "hvf")
	require.ErrorIs(t, err, contract.ErrConfig)
}
