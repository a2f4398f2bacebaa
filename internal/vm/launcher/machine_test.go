package launcher_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/vmtest"
)

// patience is for a loaded machine without KVM.
const patience = 3 * time.Minute

// programsVariable says where the binaries under test are, built once.
const programsVariable = "VMTEST_PROGRAMS"

func TestMain(m *testing.M) {
	if dir := os.Getenv(programsVariable); dir != "" {
		code := vmtest.Isolate(context.Background(), m)
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}
	os.Exit(vmtest.Isolate(context.Background(), m, vmtest.FetchKernel, build))
}

func build(ctx context.Context) ([]string, error) {
	dir, err := os.MkdirTemp("", "vm-programs-")
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"vm-launcher", "vm-agent"} {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", dir, "../../../cmd/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building %s: %w: %s", name, err, out)
		}
	}
	return []string{programsVariable + "=" + dir}, nil
}

func program(name string) string { return filepath.Join(os.Getenv(programsVariable), name) }

// machine is a pod with all a launcher finds in one.
type machine struct {
	pod    *vmtest.Pod
	dir    string
	config *contract.Config
	// extra arguments of the launcher.
	extra []string
}

// newMachine makes a pod with a number of its own and bootstrap data that the small guest runs as a script.
func newMachine(t *testing.T, number int, script string) *machine {
	t.Helper()
	m := &machine{pod: vmtest.NewPod(t, number, false), dir: t.TempDir(), config: &contract.Config{
		Name: fmt.Sprintf("worker-%d", number), Cluster: "blue", ProviderID: fmt.Sprintf("kvm://blue/worker-%d", number),
		Role: contract.RoleWorker, CPUs: 1, MemoryBytes: 192 << 20, Image: "small",
		Disks:       []contract.Disk{{Name: contract.DiskRoot, SizeBytes: 64 << 20, Dir: contract.DisksDir}},
		Accelerator: contract.AcceleratorTCG, Guest: contract.GuestConfig{Format: contract.FormatCloudConfig},
		BootSeconds: 600, SilenceSeconds: 30, ShutdownSeconds: 30,
	}}
	for _, dir := range []string{"images/small", "disks", "etcd", "volumes/logs", "bootstrap", "run"} {
		require.NoError(t, os.MkdirAll(filepath.Join(m.dir, dir), 0o750))
	}
	m.put(t, "images/small/disk.img", strings.Repeat("\x00", 1<<20))
	m.put(t, "bootstrap/value", script)
	m.put(t, "bootstrap/format", "cloud-config")
	m.put(t, "resolv.conf", "nameserver 10.96.0.10\nsearch org.svc.cluster.local\n")
	return m
}

// bootable gives the machine's image a kernel.
func (m *machine) bootable(t *testing.T) *machine {
	t.Helper()
	kernel, initrd := vmtest.Kernel(t)
	for name, from := range map[string]string{"vmlinuz": kernel, "initrd": initrd} {
		require.NoError(t, os.Symlink(from, filepath.Join(m.dir, "images/small", name)))
	}
	m.put(t, "images/small/image.json", `{"disk":"disk.img","diskFormat":"raw","kernel":"vmlinuz","initrd":"initrd",
		"cmdline":"console=ttyS0 quiet panic=1","formats":["cloud-config"]}`)
	return m
}

func (m *machine) put(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o600))
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// running is a started launcher.
type running struct {
	*machine
	cmd *exec.Cmd

	mu      sync.Mutex
	reports []*contract.Report
	other   []string
	stderr  bytes.Buffer
	code    chan int
}

func (m *machine) start(t *testing.T) *running {
	t.Helper()
	text, err := contract.EncodeConfig(m.config)
	require.NoError(t, err)
	args := append([]string{
		"run", "--verbose", "--run-dir", m.path("run"), "--images-dir", m.path("images"), "--disks-dir", m.path("disks"), "--etcd-dir", m.path("etcd"),
		"--shares-dir", m.path("volumes"), "--bootstrap-dir", m.path("bootstrap"), "--termination-log", m.path("termination-log"),
		"--resolv-conf", m.path("resolv.conf"),
	}, m.extra...)
	r := &running{machine: m, code: make(chan int, 1), cmd: exec.Command(program("vm-launcher"), args...)}
	r.cmd.Env = append(os.Environ(), contract.ConfigVariable+"="+text, "VM_AGENT_PROGRAM="+program("vm-agent"))
	r.cmd.Stderr = &r.stderr
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := r.cmd.StdoutPipe()
	require.NoError(t, err)
	m.pod.Do(t, func() { require.NoError(t, r.cmd.Start()) })
	go r.read(out)
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		r.wait(t)
		if t.Failed() {
			console, _ := os.ReadFile(m.path("disks/console.log"))
			t.Logf("launcher:\n%s\nconsole:\n%s", r.stderr.String(), console)
		}
	})
	return r
}

func (r *running) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		r.mu.Lock()
		if report, ok := contract.ParseReport(lines.Bytes()); ok {
			r.reports = append(r.reports, report)
		} else {
			r.other = append(r.other, lines.Text())
		}
		r.mu.Unlock()
	}
	err := r.cmd.Wait()
	var ended *exec.ExitError
	switch {
	case err == nil:
		r.code <- 0
	case errors.As(err, &ended):
		r.code <- ended.ExitCode()
	default:
		r.code <- -2
	}
}

// wait waits for the launcher's end and returns its exit code; it may be called again.
func (r *running) wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-r.code:
		r.code <- code
		return code
	case <-time.After(patience):
		t.Error("the launcher does not end")
		return -1
	}
}

// report waits for a report.
func (r *running) report(t *testing.T, what string, is func(*contract.Report) bool) *contract.Report {
	t.Helper()
	var found *contract.Report
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, report := range r.reports {
			if is(report) {
				found = report
				return true
			}
		}
		return false
	}, patience, 20*time.Millisecond, what)
	return found
}

func (r *running) started(t *testing.T) *contract.Report {
	t.Helper()
	return r.report(t, "the report that it started", func(r *contract.Report) bool { return r.Kind == contract.ReportStarted })
}

func (r *running) last() *contract.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reports[len(r.reports)-1]
}

// console waits for a text on the serial console.
func (r *running) console(t *testing.T, text string) string {
	t.Helper()
	var all string
	require.Eventually(t, func() bool {
		raw, err := os.ReadFile(r.path("disks/console.log"))
		all = string(raw)
		return err == nil && strings.Contains(all, text)
	}, patience, 20*time.Millisecond, "the console says "+text)
	return all
}

// probe asks as the kubelet would.
func (r *running) probe(t *testing.T, question string) (int, string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program("vm-launcher"), "probe", question, "--run-dir", r.path("run")).CombinedOutput()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return ended.ExitCode(), string(out)
	}
	require.NoError(t, err)
	return 0, string(out)
}

// qemu finds the launcher's child.
func (r *running) qemu(t *testing.T) int {
	t.Helper()
	pid := 0
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.cmd.Process.Pid))
	require.NoError(t, err)
	for _, task := range tasks {
		if raw, err := os.ReadFile(task); err == nil && len(raw) > 0 {
			_, err := fmt.Sscan(string(raw), &pid)
			require.NoError(t, err)
		}
	}
	require.NotZero(t, pid)
	return pid
}

// bootstrapped lets the small guest look like a worker whose kubeadm succeeded: it counts its boots on its disk, answers as a kubelet and leaves
// the sentinel.
const bootstrapped = `
n=$(dd if=/dev/disk-root bs=512 skip=100 count=1 2>/dev/null | tr -d '\000'); n=$((n + 1))
echo "$n" | dd of=/dev/disk-root bs=512 seek=100 conv=sync,fsync 2>/dev/null
echo "boot number $n"
mkdir -p /www /data/logs /run/cluster-api
echo ok >/www/healthz
httpd -p 10248 -h /www
mount -t 9p -o trans=virtio,version=9p2000.L logs /data/logs && echo "from boot $n" >/data/logs/note
acpid
echo success >/run/cluster-api/bootstrap-success.complete
`

// TestTheLifeOfAMachine goes once through all that happens to an ordinary machine.
func TestTheLifeOfAMachine(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 1, bootstrapped).bootable(t)
	m.config.Disks = append(m.config.Disks, contract.Disk{Name: contract.DiskEtcd, SizeBytes: 16 << 20, Dir: contract.EtcdDir})
	m.config.Shares = []contract.Share{{Tag: "logs"}}
	m.config.Guest.SearchDomains = []string{"example.org"}

	r := m.start(t)
	started := r.started(t)
	assert.Equal(t, m.pod.Address.Addr().String(), started.Address)
	assert.Equal(t, contract.AcceleratorTCG, started.Accelerator)
	t.Logf("QEMU ran after %d ms", started.Milliseconds)
	code, why := r.probe(t, "live")
	assert.Equal(t, 0, code, why)
	code, why = r.probe(t, "ready")
	assert.Equal(t, 1, code, why)
	code, why = r.probe(t, "status")
	assert.Equal(t, 0, code, why)
	var status map[string]any
	require.NoError(t, json.Unmarshal([]byte(why), &status), why)
	assert.Equal(t, "running", status["phase"])

	r.report(t, "the guest is bootstrapped and its kubelet healthy", func(r *contract.Report) bool {
		return r.Kind == contract.ReportGuest && r.Guest.Bootstrap == contract.BootstrapSucceeded && r.Guest.Kubelet && r.Guest.BootID != ""
	})
	console := r.console(t, "boot number 1")
	assert.Contains(t, console, fmt.Sprintf("lease ip=%s/24 routes=0.0.0.0/0 %s dns=10.96.0.10 search=example.org hostname=worker-1 mtu=1450 mac=%s",
		m.pod.Address.Addr(), m.pod.Gateway, m.pod.MAC))
	code, why = r.probe(t, "ready")
	assert.Equal(t, 0, code, why)
	note, err := os.ReadFile(m.path("volumes/logs/note"))
	require.NoError(t, err)
	assert.Equal(t, "from boot 1\n", string(note))

	// Neighbours reach the guest at the pod's address.
	response, err := (&http.Client{Timeout: 10 * time.Second}).Get("http://" + net.JoinHostPort(m.pod.Address.Addr().String(), "10248") + "/healthz")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	assert.Equal(t, http.StatusOK, response.StatusCode)

	// The power button, within the pod's grace period.
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, contract.ExitPowerOff, r.wait(t))
	assert.Equal(t, contract.ReportStopped, r.last().Kind)
	assert.NoFileExists(t, m.path("termination-log"))
	r.console(t, "power button")

	// Another start of the container finds disks and network as they were; QEMU's death is said as such.
	again := m.start(t)
	again.started(t)
	again.console(t, "boot number 2")
	require.NoError(t, syscall.Kill(again.qemu(t), syscall.SIGKILL))
	assert.Equal(t, contract.ExitGuest, again.wait(t))
	assert.Equal(t, contract.ReportStopped, again.last().Kind)
	assert.Equal(t, contract.ExitGuest, again.last().Code)
	words, err := os.ReadFile(m.path("termination-log"))
	require.NoError(t, err)
	assert.Contains(t, string(words), "GuestEnded: QEMU ended: signal: killed")

	// A killed launcher takes QEMU with it, and the next one still finds sound disks.
	third := m.start(t)
	third.started(t)
	third.console(t, "boot number 3")
	qemu := third.qemu(t)
	require.NoError(t, third.cmd.Process.Kill())
	third.wait(t)
	require.Eventually(t, func() bool { return errors.Is(syscall.Kill(qemu, 0), syscall.ESRCH) }, patience, 20*time.Millisecond)
	fourth := m.start(t)
	fourth.started(t)
	fourth.console(t, "boot number 4")
	for _, r := range []*running{r, again, third, fourth} {
		assert.Empty(t, r.other, "the log has nothing but reports")
		assert.NotContains(t, r.stderr.String(), "healthz", "the bootstrap data are not logged")
	}
}

func TestAGuestThatRebootsAndOneThatPowersOff(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 2, `
n=$(dd if=/dev/disk-root bs=512 skip=100 count=1 2>/dev/null | tr -d '\000'); n=$((n + 1))
echo "$n" | dd of=/dev/disk-root bs=512 seek=100 conv=sync,fsync 2>/dev/null
echo "boot number $n"
mkdir -p /data; mount -t 9p -o trans=virtio,version=9p2000.L logs /data
until [ -e /data/go$n ]; do sleep 0.2; done
[ $n = 1 ] && reboot -f
poweroff -f
`).bootable(t)
	m.config.Shares = []contract.Share{{Tag: "logs"}}
	r := m.start(t)
	first := r.report(t, "the first boot", func(r *contract.Report) bool { return r.Guest != nil })
	m.put(t, "volumes/logs/go1", "")
	r.report(t, "the second boot", func(r *contract.Report) bool { return r.Guest != nil && r.Guest.BootID != first.Guest.BootID })
	m.put(t, "volumes/logs/go2", "")
	assert.Equal(t, contract.ExitGuest, r.wait(t))
	assert.Contains(t, r.last().Message, "without having been asked")
	starts := 0
	for _, report := range r.reports {
		if report.Kind == contract.ReportStarted {
			starts++
		}
	}
	assert.Equal(t, 1, starts, "a reboot is no restart of QEMU")
}

func TestAGuestThatIgnoresThePowerButton(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 3, "echo no acpid here").bootable(t)
	m.config.ShutdownSeconds = 2
	r := m.start(t)
	r.console(t, "no acpid here")
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, contract.ExitKilled, r.wait(t))
	assert.Contains(t, r.last().Message, "did not power off within 2 s")
}

// TestAGuestThatNeverSpeaks is ended by the kubelet, whose liveness probe fails. What is told is not that it does not power off, which sends people to look for a service that hangs.
func TestAGuestThatNeverSpeaks(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 6, "echo this guest hangs; while :; do sleep 1; done").bootable(t)
	m.config.BootSeconds, m.config.ShutdownSeconds = 3, 2
	r := m.start(t)
	r.console(t, "this guest hangs")
	require.Eventually(t, func() bool {
		code, _ := r.probe(t, "live")
		return code != 0
	}, patience, 100*time.Millisecond)
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, contract.ExitSilent, r.wait(t))
	assert.Contains(t, r.last().Message, "the guest boots for")
	assert.Contains(t, r.last().Message, "did not power off within 2 s")
}

// small mounts a small file system at the machine's directory of disks.
func (m *machine) small(t *testing.T, size string) {
	t.Helper()
	require.NoError(t, syscall.Mount("tmpfs", m.path("disks"), "tmpfs", 0, "size="+size))
	t.Cleanup(func() { assert.NoError(t, syscall.Unmount(m.path("disks"), syscall.MNT_DETACH)) })
}

func TestAHostThatRunsOutOfRoomPausesTheGuest(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 4, `
acpid
dd if=/dev/urandom of=/dev/disk-root bs=1M count=12 conv=fsync 2>/dev/null && echo all is written
`).bootable(t)
	m.small(t, "14m")
	m.put(t, "disks/ballast", strings.Repeat("x", 8<<20))
	r := m.start(t)
	report := r.report(t, "the host has no room", func(r *contract.Report) bool {
		return r.Guest != nil && len(r.Guest.Problems) > 0
	})
	assert.Contains(t, report.Guest.Problems[0], "disk-root: the host has no room")
	code, why := r.probe(t, "ready")
	assert.Equal(t, 1, code, why)
	require.NoError(t, os.Remove(m.path("disks/ballast")))
	r.console(t, "all is written")
	r.report(t, "it is over", func(later *contract.Report) bool {
		return later.Guest != nil && later.Time.After(report.Time) && len(later.Guest.Problems) == 0
	})
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, contract.ExitPowerOff, r.wait(t))
}

func TestAHostThatStaysFullEndsTheMachine(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 5, "dd if=/dev/urandom of=/dev/disk-root bs=1M count=12 conv=fsync").bootable(t)
	m.config.SilenceSeconds = 4
	m.small(t, "4m")
	r := m.start(t)
	assert.Equal(t, contract.ExitDiskFull, r.wait(t))
	assert.Equal(t, contract.ReportFailed, r.last().Kind)
	assert.Contains(t, r.last().Message, "free space on the host")
}

// TestWhatKeepsAMachineFromStarting has one case for each exit code before QEMU runs. Each says what is wrong, where, and what to do.
func TestWhatKeepsAMachineFromStarting(t *testing.T) {
	number := 10
	for name, test := range map[string]struct {
		spoil func(t *testing.T, m *machine)
		code  int
		says  string
	}{
		"a configuration of another version": {func(_ *testing.T, m *machine) { m.config.Role = "etcd" }, contract.ExitConfig, "different versions"},
		"an image that is not there":         {func(_ *testing.T, m *machine) { m.config.Image = "debian-13" }, contract.ExitImage, "debian-13"},
		"an image without its kernel": {func(t *testing.T, m *machine) {
			t.Helper()
			require.NoError(t, os.Remove(m.path("images/small/vmlinuz")))
		}, contract.ExitImage, "complete the image"},
		"no room for a disk": {func(t *testing.T, m *machine) {
			t.Helper()
			m.small(t, "16k")
			m.put(t, "disks/ballast", strings.Repeat("x", 16<<10))
		}, contract.ExitDiskFull, "no room on the host"},
		"a corrupt overlay": {func(t *testing.T, m *machine) {
			t.Helper()
			m.config.ShutdownSeconds = 0
			r := m.start(t)
			r.started(t)
			require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
			require.Equal(t, contract.ExitKilled, r.wait(t))
			m.put(t, "disks/root.qcow2", "garbage")
		}, contract.ExitDisk, "it is corrupt"},
		"a tap that is taken": {func(t *testing.T, m *machine) {
			t.Helper()
			attributes := netlink.NewLinkAttrs()
			attributes.Name = "capk-tap"
			m.pod.Do(t, func() {
				require.NoError(t, netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: attributes, Mode: netlink.TUNTAP_MODE_TAP}))
			})
		}, contract.ExitNetwork, "capk-tap is taken"},
		"no bootstrap data": {func(t *testing.T, m *machine) {
			t.Helper()
			require.NoError(t, os.Remove(m.path("bootstrap/value")))
		}, contract.ExitBootstrap, "missing"},
		"bootstrap data the image does not understand": {func(t *testing.T, m *machine) {
			t.Helper()
			m.put(t, "bootstrap/format", "ignition")
		}, contract.ExitBootstrap, "does not understand"},
		"a QEMU that is not there": {func(_ *testing.T, m *machine) { m.extra = []string{"--qemu", "/no/such/qemu"} }, contract.ExitQEMU, "/no/such/qemu"},
		"a QEMU that refuses":      {func(_ *testing.T, m *machine) { m.config.CPUs = 100_000 }, contract.ExitQEMU, "CPUs"},
	} {
		number++
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, number, "secret-of-the-bootstrap-data").bootable(t)
			test.spoil(t, m)
			r := m.start(t)
			assert.Equal(t, test.code, r.wait(t))
			last := r.last()
			assert.Equal(t, contract.ReportFailed, last.Kind)
			assert.Equal(t, test.code, last.Code)
			assert.Contains(t, last.Message, test.says)
			words, err := os.ReadFile(m.path("termination-log"))
			require.NoError(t, err)
			assert.True(t, strings.HasPrefix(string(words), contract.ExitReason(test.code)+": "), string(words))
			assert.NotContains(t, r.stderr.String()+string(words)+last.Message, "secret-of")
		})
	}
}

func TestSIGTERMWhilePreparingEndsAtOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 40, "true").bootable(t)
	m.config.Accelerator = contract.AcceleratorAuto
	m.put(t, "qemu", "#!/bin/sh\nexec sleep 60\n")
	require.NoError(t, os.Chmod(m.path("qemu"), 0o700))
	m.extra = []string{"--qemu", m.path("qemu")}
	r := m.start(t)
	require.Eventually(t, func() bool { _, err := os.Stat(m.path("run/health.sock")); return err == nil }, patience, 5*time.Millisecond)
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, contract.ExitPowerOff, r.wait(t))
}
