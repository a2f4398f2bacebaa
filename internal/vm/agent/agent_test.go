package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	testclock "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/agent"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// guest is a file tree and a recorder of commands.
type guest struct {
	*agent.System

	t        *testing.T
	commands []string
	// answer gives the output and error of a command; nothing and success without it.
	answer func(command string) (string, error)
}

func newGuest(t *testing.T) *guest {
	t.Helper()
	g := &guest{t: t}
	g.System = &agent.System{Root: t.TempDir(), Run: func(_ context.Context, argv ...string) (string, error) {
		command := strings.Join(argv, " ")
		g.commands = append(g.commands, command)
		if g.answer != nil {
			return g.answer(command)
		}
		return "", nil
	}}
	return g
}

func (g *guest) put(path, content string) {
	g.t.Helper()
	full := filepath.Join(g.Root, path)
	require.NoError(g.t, os.MkdirAll(filepath.Dir(full), 0o755))
	require.NoError(g.t, os.WriteFile(full, []byte(content), 0o600))
}

func (g *guest) has(path string) string {
	g.t.Helper()
	raw, err := os.ReadFile(filepath.Join(g.Root, path))
	require.NoError(g.t, err)
	return string(raw)
}

func quiet() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(&bytes.Buffer{})
	return log
}

// mounting answers as a kernel and a disk would: what was mounted stays until it is taken off, and what is mounted by its place alone has to be in fstab.
func (g *guest) mounting(blkid func() (string, error)) {
	g.t.Helper()
	refused := code(g.t, "1")
	mounts := map[string][]string{"/": {"/dev/vda1"}}
	g.answer = func(command string) (string, error) {
		words := strings.Fields(command)
		place := words[len(words)-1]
		there := len(mounts[place])
		switch words[0] {
		case "blkid":
			return blkid()
		case "mountpoint", "findmnt":
			if there == 0 {
				return "", refused
			}
			return mounts[place][there-1] + "\n", nil
		case "mount":
			if len(words) == 2 && !strings.Contains(g.has("/etc/fstab"), " "+place+" ") {
				return "", refused
			}
			mounts[place] = append(mounts[place], words[len(words)-2])
		case "umount":
			mounts[place] = mounts[place][:there-1]
		}
		return "", nil
	}
}

// code is the error of a command that ended with an exit code.
func code(t *testing.T, n string) error {
	t.Helper()
	err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "exit "+n).Run()
	require.Error(t, err)
	return err
}

func (g *guest) setup(config contract.GuestConfig) {
	g.t.Helper()
	raw, err := json.Marshal(config)
	require.NoError(g.t, err)
	seed := g.t.TempDir()
	require.NoError(g.t, os.WriteFile(filepath.Join(seed, "machine.json"), raw, 0o600))
	require.NoError(g.t, os.WriteFile(filepath.Join(seed, "vm-agent"), []byte("program"), 0o600))
	require.NoError(g.t, agent.Setup(g.t.Context(), g.System, seed, filepath.Join(seed, "vm-agent"), quiet()))
}

func TestSetupWritesWhatTheConfigurationAsksFor(t *testing.T) {
	g := newGuest(t)
	g.put("/lib/systemd/system/systemd-resolved.service", "")
	g.put("/lib/systemd/system/systemd-timesyncd.service", "")
	g.setup(contract.GuestConfig{
		DNSServers: []string{"10.0.0.53", "10.0.0.54"}, SearchDomains: []string{"customer.example"}, NTPServers: []string{"10.0.0.123"},
		ISCSIInitiatorName: "iqn.2016-04.io.example:al9qy-1",
	})
	assert.Equal(t, "[Resolve]\nDNS=10.0.0.53 10.0.0.54\nDomains=customer.example ~.\n", g.has("/etc/systemd/resolved.conf.d/10-capk.conf"))
	assert.Equal(t, "[Time]\nNTP=10.0.0.123\nFallbackNTP=\n", g.has("/etc/systemd/timesyncd.conf.d/10-capk.conf"))
	assert.Equal(t, "InitiatorName=iqn.2016-04.io.example:al9qy-1\n", g.has("/etc/iscsi/initiatorname.iscsi"))
	assert.Equal(t, "program", g.has("/opt/capk/vm-agent"))
	assert.Contains(t, g.has("/etc/systemd/system/capk-agent.service"), "ExecStart=/opt/capk/vm-agent run")
	assert.Equal(t, "{}", g.has("/run/capk/problems.json"), "no problems")
}

func TestSetupWithoutSystemdResolvedWritesResolvConf(t *testing.T) {
	g := newGuest(t)
	g.setup(contract.GuestConfig{DNSServers: []string{"10.0.0.53"}, SearchDomains: []string{"a.example", "b.example"}})
	assert.Equal(t, "nameserver 10.0.0.53\nsearch a.example b.example\n", g.has("/etc/resolv.conf"))
}

func TestSetupGoesOnAfterAProblemAndReportsIt(t *testing.T) {
	g := newGuest(t)
	g.setup(contract.GuestConfig{NTPServers: []string{"10.0.0.123"}, ISCSIInitiatorName: "iqn.2016-04.io.example:1"})
	assert.Contains(t, g.has("/run/capk/problems.json"), "neither chrony nor systemd-timesyncd")
	assert.Contains(t, g.has("/etc/iscsi/initiatorname.iscsi"), "iqn.")
}

func TestABlankDiskIsFormattedFilledAndMounted(t *testing.T) {
	g := newGuest(t)
	g.put("/dev/disk/by-id/virtio-docker", "")
	g.put("/etc/fstab", "/dev/vda / ext4 defaults 0 1\n")
	blank := code(t, "2")
	g.mounting(func() (string, error) { return "", blank })
	config := contract.GuestConfig{Mounts: []contract.Mount{{Disk: "docker", Path: "/var/lib/containerd"}, {Tag: "data", Path: "/data/data"}}}
	g.setup(config)
	all := strings.Join(g.commands, "\n")
	assert.Contains(t, all, "mkfs.ext4 -q -F")
	assert.Contains(t, all, "cp -a /var/lib/containerd /var/lib/capk/disks/docker/data")
	assert.Regexp(t, `(?s)\nmount /var/lib/containerd\n.*\nmount /data/data\n`, all)
	assert.NotContains(t, all, "capk-not-mounted")
	want := "/dev/vda / ext4 defaults 0 1\n" +
		"# begin of what the machine's agent mounts\n" +
		"/dev/disk/by-id/virtio-docker /var/lib/capk/disks/docker ext4 defaults,nofail,x-systemd.device-timeout=60 0 2\n" +
		"/var/lib/capk/disks/docker/data /var/lib/containerd none bind,nofail,x-systemd.requires-mounts-for=/var/lib/capk/disks/docker 0 0\n" +
		"data /data/data 9p trans=virtio,version=9p2000.L,msize=262144,nofail 0 0\n" +
		"# end of what the machine's agent mounts\n"
	assert.Equal(t, want, g.has("/etc/fstab"))
	g.setup(config)
	assert.Equal(t, want, g.has("/etc/fstab"), "a second boot changes nothing")
}

func TestADiskWithContentIsNeverFormatted(t *testing.T) {
	g := newGuest(t)
	g.put("/dev/disk/by-id/virtio-etcd", "")
	g.put("/var/lib/capk/disks/etcd/complete", "")
	g.setup(contract.GuestConfig{Mounts: []contract.Mount{{Disk: "etcd", Path: "/var/lib/etcd"}}})
	all := strings.Join(g.commands, "\n")
	assert.NotContains(t, all, "mkfs")
	assert.NotContains(t, all, "cp -a")
}

func TestADiskThatCannotBeReadIsNotTakenForBlank(t *testing.T) {
	g := newGuest(t)
	g.put("/dev/disk/by-id/virtio-etcd", "")
	broken := errors.New("input/output error")
	g.answer = func(command string) (string, error) {
		if strings.HasPrefix(command, "blkid") {
			return "", broken
		}
		return "", nil
	}
	g.setup(contract.GuestConfig{Mounts: []contract.Mount{{Disk: "etcd", Path: "/var/lib/etcd"}}})
	assert.NotContains(t, strings.Join(g.commands, "\n"), "mkfs")
	assert.Contains(t, g.has("/run/capk/problems.json"), "input/output error")
}

// TestADiskThatBlkidDoesNotKnowIsNotTakenForBlank: it ends the same way for what it cannot read, and for a superblock that is damaged.
func TestADiskThatBlkidDoesNotKnowIsNotTakenForBlank(t *testing.T) {
	nothing := exec.CommandContext(t.Context(), "sh", "-c", "exit 2").Run()
	require.Error(t, nothing)
	disk := func(size int64, at int64, content string) func(path string) {
		return func(path string) {
			require.NoError(t, os.Truncate(path, size))
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte(content), at)
			require.NoError(t, errors.Join(err, f.Close()))
		}
	}
	for name, test := range map[string]struct {
		disk   func(path string)
		refuse string
	}{
		"a new one":                {disk: func(path string) { require.NoError(t, os.Truncate(path, 1<<30)) }},
		"a small new one":          {disk: func(path string) { require.NoError(t, os.Truncate(path, 1<<20)) }},
		"something at its start":   {disk(1<<30, 0, "LUKS"), "there is something at byte 0"},
		"half a superblock":        {disk(1<<30, 1100, "/var/lib/etcd"), "there is something at byte 1100"},
		"a copy of a superblock":   {disk(1<<30, 32768<<12+0x38, "\x53\xef"), "there is a copy of one at byte 134217728"},
		"a copy with small blocks": {disk(1<<30, 8193<<10+0x38, "\x53\xef"), "there is a copy of one at byte 8389632"},
		"what cannot be read": {func(path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Mkdir(path, 0o700))
		}, "is a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t)
			g.put("/dev/disk/by-id/virtio-etcd", "")
			test.disk(filepath.Join(g.Root, "/dev/disk/by-id/virtio-etcd"))
			g.answer = func(command string) (string, error) {
				if strings.HasPrefix(command, "blkid") {
					return "", nothing
				}
				return "", nil
			}
			g.setup(contract.GuestConfig{Mounts: []contract.Mount{{Disk: "etcd", Path: "/var/lib/etcd"}}})
			all := strings.Join(g.commands, "\n")
			if test.refuse == "" {
				assert.Contains(t, all, "mkfs.ext4")
				return
			}
			assert.NotContains(t, all, "mkfs")
			assert.NotContains(t, all, "mount -t ext4")
			assert.Contains(t, g.has("/run/capk/problems.json"), test.refuse)
		})
	}
}

// TestBlkidEndsTheSameWayForADamagedSuperblock, which is why its word is not enough.
func TestBlkidEndsTheSameWayForADamagedSuperblock(t *testing.T) {
	for _, program := range []string{"mkfs.ext4", "blkid"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	g := newGuest(t)
	const device = "/dev/disk/by-id/virtio-etcd"
	g.put(device, "")
	path := filepath.Join(g.Root, device)
	require.NoError(t, os.Truncate(path, 256<<20))
	out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-F", "-b", "4096", path).CombinedOutput()
	require.NoError(t, err, string(out))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(make([]byte, 4096), 0)
	require.NoError(t, errors.Join(err, f.Close()))
	g.mounting(func() (string, error) {
		out, err := exec.CommandContext(t.Context(), "blkid", "-p", path).CombinedOutput()
		return string(out), err
	})
	g.setup(contract.GuestConfig{Mounts: []contract.Mount{{Disk: "etcd", Path: "/var/lib/etcd"}}})
	all := strings.Join(g.commands, "\n")
	assert.NotContains(t, all, "mkfs")
	assert.Contains(t, all, coverOfEtcd)
	assert.Contains(t, g.has("/run/capk/problems.json"), "there is a copy of one at byte 134217728")
}

const coverOfEtcd = "\nmount -t tmpfs -o ro,size=4k capk-not-mounted /var/lib/etcd"

// TestAPlaceWhoseDiskIsNotWellIsCovered until a later setup finds it well: an etcd that finds nothing there and can write becomes a cluster of its own.
func TestAPlaceWhoseDiskIsNotWellIsCovered(t *testing.T) {
	g := newGuest(t)
	g.put("/dev/disk/by-id/virtio-etcd", "")
	config := contract.GuestConfig{Mounts: []contract.Mount{{Disk: "etcd", Path: "/var/lib/etcd"}, {Tag: "data", Path: "/data/data"}}}
	var broken error
	blkid := func() (string, error) { return "", broken }
	g.mounting(blkid)
	g.setup(config)
	assert.NotContains(t, strings.Join(g.commands, "\n"), coverOfEtcd)
	assert.Empty(t, g.agent(config).Look(t.Context()).NotMounted)
	before := g.has("/etc/fstab")

	g.mounting(blkid) // a reboot
	broken, g.commands = errors.New("input/output error"), nil
	g.setup(config)
	all := strings.Join(g.commands, "\n")
	assert.Contains(t, all, coverOfEtcd)
	assert.NotContains(t, all, "\nmount /var/lib/etcd")
	assert.Contains(t, all, "\nmount /data/data")
	assert.Equal(t, before, g.has("/etc/fstab"), "the disk may be well at the next boot")
	look := g.agent(config).Look(t.Context())
	assert.Equal(t, []string{"/var/lib/etcd"}, look.NotMounted)
	assert.Contains(t, strings.Join(look.Problems, "\n"), "input/output error")

	broken, g.commands = nil, nil
	g.setup(config)
	all = strings.Join(g.commands, "\n")
	assert.Contains(t, all, "\nmount /var/lib/etcd")
	assert.NotContains(t, all, "umount", "etcd must not find the place open in between")
	assert.NotContains(t, all, coverOfEtcd)
	assert.Equal(t, before, g.has("/etc/fstab"))
	assert.Empty(t, g.agent(config).Look(t.Context()).NotMounted)
}

// TestADiskThatComesLateGetsWhatLiesBelowTheCover because container images are part of the guest's image.
func TestADiskThatComesLateGetsWhatLiesBelowTheCover(t *testing.T) {
	g := newGuest(t)
	config := contract.GuestConfig{Mounts: []contract.Mount{{Disk: "docker", Path: "/var/lib/containerd"}}}
	blank := code(t, "2")
	g.mounting(func() (string, error) { return "", blank })
	g.setup(config)
	assert.Equal(t, []string{"/var/lib/containerd"}, g.agent(config).Look(t.Context()).NotMounted)

	g.put("/dev/disk/by-id/virtio-docker", "")
	g.setup(config)
	assert.Contains(t, strings.Join(g.commands, "\n"), "\numount /var/lib/containerd\ncp -a /var/lib/containerd ")
	assert.Empty(t, g.agent(config).Look(t.Context()).NotMounted)
}

// TestAShareThatCannotBeMountedIsCovered until somebody mounts it, also when that is done by hand.
func TestAShareThatCannotBeMountedIsCovered(t *testing.T) {
	g := newGuest(t)
	g.mounting(func() (string, error) { return "", nil })
	kernel := g.answer
	g.answer = func(command string) (string, error) {
		if command == "mount /data/data" {
			return "", errors.New("unknown filesystem type '9p'")
		}
		return kernel(command)
	}
	config := contract.GuestConfig{Mounts: []contract.Mount{{Tag: "data", Path: "/data/data"}}}
	g.setup(config)
	assert.Contains(t, strings.Join(g.commands, "\n"), "mount -t tmpfs -o ro,size=4k capk-not-mounted /data/data")
	a := g.agent(config)
	assert.Equal(t, []string{"/data/data"}, a.Look(t.Context()).NotMounted)
	_, err := kernel("mount -t 9p data /data/data")
	require.NoError(t, err)
	assert.Empty(t, a.Look(t.Context()).NotMounted)
}

func TestAMissingDiskIsAProblemWithItsName(t *testing.T) {
	g := newGuest(t)
	g.setup(contract.GuestConfig{Mounts: []contract.Mount{{Disk: "kubelet", Path: "/var/lib/kubelet"}}})
	assert.Contains(t, g.has("/run/capk/problems.json"), `/var/lib/kubelet: the machine has no disk \"kubelet\"`)
}

func (g *guest) agent(config contract.GuestConfig) *agent.Agent {
	g.t.Helper()
	raw, err := json.Marshal(config)
	require.NoError(g.t, err)
	g.put("/var/lib/capk/machine.json", string(raw))
	a, err := agent.New(g.System, testclock.NewFakeClock(time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)), quiet())
	require.NoError(g.t, err)
	a.KubeletURL, a.APIURL = "http://127.0.0.1:1/", ""
	return a
}

func TestBootstrapMovesForwardOnly(t *testing.T) {
	g := newGuest(t)
	a := g.agent(contract.GuestConfig{Format: contract.FormatCloudConfig})
	assert.Equal(t, contract.BootstrapRunning, a.Look(t.Context()).Bootstrap)
	g.put("/run/cluster-api/bootstrap-success.complete", "success")
	assert.Equal(t, contract.BootstrapSucceeded, a.Look(t.Context()).Bootstrap)

	// A reboot: /run is empty, and cloud-init has ended again without running kubeadm.
	require.NoError(t, os.RemoveAll(filepath.Join(g.Root, "run")))
	g.put("/run/cloud-init/result.json", "{}")
	again := g.agent(contract.GuestConfig{Format: contract.FormatCloudConfig})
	assert.Equal(t, contract.BootstrapSucceeded, again.Look(t.Context()).Bootstrap)
}

// TestARestartAtTheEndOfBootstrapping is what postKubeadmCommands with a reboot come to: the mark is made after the last look and gone before the next.
func TestARestartAtTheEndOfBootstrapping(t *testing.T) {
	g := newGuest(t)
	ctx, end := context.WithCancel(t.Context())
	marks := writer(func(line []byte) (int, error) {
		assert.Contains(t, string(line), string(contract.BootstrapRunning))
		g.put("/run/cluster-api/bootstrap-success.complete", "success")
		end()
		return len(line), nil
	})
	require.NoError(t, g.agent(contract.GuestConfig{Format: contract.FormatCloudConfig}).Run(ctx, marks))

	require.NoError(t, os.RemoveAll(filepath.Join(g.Root, "run")))
	g.put("/run/cloud-init/result.json", "{}")
	again := g.agent(contract.GuestConfig{Format: contract.FormatCloudConfig})
	assert.Equal(t, contract.BootstrapSucceeded, again.Look(t.Context()).Bootstrap)
}

// TestARestartInTheMiddleOfBootstrapping is a guest that is killed while its bootstrap data run: they are not run again, which is told before cloud-init has ended once more.
func TestARestartInTheMiddleOfBootstrapping(t *testing.T) {
	g := newGuest(t)
	look := func(boot string) contract.Guest {
		g.put("/proc/sys/kernel/random/boot_id", boot+"\n")
		return g.agent(contract.GuestConfig{Format: contract.FormatCloudConfig}).Look(t.Context())
	}
	assert.Equal(t, contract.BootstrapRunning, look("first").Bootstrap)
	assert.Equal(t, contract.BootstrapRunning, look("second").Bootstrap, "they had not begun, and cloud-init begins them now")
	g.put("/var/lib/cloud/instance/sem/config_scripts_user", "")
	g.put("/var/log/cloud-init-output.log", "waiting for the promotion of this member\n")
	assert.Equal(t, contract.BootstrapRunning, look("second").Bootstrap)
	assert.Equal(t, contract.BootstrapRunning, look("second").Bootstrap, "a later look in the same boot")
	broken := look("third")
	assert.Equal(t, contract.BootstrapFailed, broken.Bootstrap)
	assert.Contains(t, broken.BootstrapMessage, "restarted")
	assert.Contains(t, broken.BootstrapLog, "waiting for the promotion")
	assert.Equal(t, contract.BootstrapFailed, look("fourth").Bootstrap)
}

// writer is a port that does something with what is written to it.
type writer func(line []byte) (int, error)

func (w writer) Write(line []byte) (int, error) { return w(line) }

func TestAFailedBootstrapTellsTheEndOfItsLogWithoutCredentials(t *testing.T) {
	g := newGuest(t)
	g.put("/run/cloud-init/result.json", "{}")
	g.put("/var/log/cloud-init-output.log", strings.Repeat("old line\n", 4000)+planted+"error execution phase preflight: couldn't validate\n"+
		strings.Repeat("2026-11-21 14:53:54,724 - handlers.py[DEBUG]: finish: modules-final\n", 200))
	look := g.agent(contract.GuestConfig{Format: contract.FormatCloudConfig}).Look(t.Context())
	assert.Equal(t, contract.BootstrapFailed, look.Bootstrap)
	assert.Contains(t, look.BootstrapLog, "couldn't validate")
	assert.LessOrEqual(t, len(look.BootstrapLog), 4<<10)
	for _, secret := range secrets {
		assert.NotContains(t, look.BootstrapLog, secret)
	}
}

func TestAFailedIgnitionBootstrapIsFound(t *testing.T) {
	g := newGuest(t)
	g.answer = func(command string) (string, error) {
		switch {
		case strings.HasPrefix(command, "systemctl is-failed"):
			return "failed\n", nil
		case strings.HasPrefix(command, "journalctl"):
			return "token=abcdef.0123456789abcdef\nno route to host\n", nil
		default:
			return "", nil
		}
	}
	look := g.agent(contract.GuestConfig{Format: contract.FormatIgnition}).Look(t.Context())
	assert.Equal(t, contract.BootstrapFailed, look.Bootstrap)
	assert.Contains(t, look.BootstrapLog, "no route to host")
	assert.NotContains(t, look.BootstrapLog, "0123456789abcdef")
}

// secrets are planted into a log; none may leave the guest.
var secrets = []string{
	"abcdef.0123456789abcdef", strings.Repeat("a1b2c3d4", 8), "hunter2hunter2", "c2VjcmV0a2V5", "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2ln",
	"MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
}

var planted = "kubeadm join 10.0.0.1:6443 --token " + secrets[0] + " --certificate-key " + secrets[1] + "\n" +
	`registry password: "` + secrets[2] + "\"\nhttps://user:" + secrets[3] + "@proxy.example:3128\nAuthorization: Bearer " + secrets[4] + "\n" +
	"-----BEGIN PRIVATE KEY-----\n" + secrets[5] + "\n-----END PRIVATE KEY-----\n"

func TestHealthEndpointsAreAsked(t *testing.T) {
	kubelet := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	defer kubelet.Close()
	connections := 0
	forbidden := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte("who are you?"))
	}))
	forbidden.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections++
		}
	}
	forbidden.StartTLS()
	defer forbidden.Close()
	broken := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	defer broken.Close()

	g := newGuest(t)
	a := g.agent(contract.GuestConfig{})
	a.KubeletURL, a.APIURL = kubelet.URL, forbidden.URL
	var look contract.Guest
	for range 3 {
		look = a.Look(t.Context())
		assert.True(t, look.Kubelet)
		assert.True(t, look.API, "a server that refuses anonymous requests serves")
	}
	assert.Equal(t, 1, connections, "a handshake is a lot to ask of an emulated guest")
	a.KubeletURL, a.APIURL = forbidden.URL, broken.URL
	look = a.Look(t.Context())
	assert.False(t, look.Kubelet)
	assert.False(t, look.API)
}

// port ends the agent after some beats.
type port struct {
	bytes.Buffer

	left int
	end  context.CancelFunc
}

func (p *port) Write(b []byte) (int, error) {
	if p.left--; p.left == 0 {
		p.end()
	}
	return p.Buffer.Write(b)
}

func TestABeatIsOneLine(t *testing.T) {
	g := newGuest(t)
	g.put("/proc/sys/kernel/random/boot_id", "b00710ad\n")
	a := g.agent(contract.GuestConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	p := &port{left: 1, end: cancel}
	require.NoError(t, a.Run(ctx, p))
	var beat contract.Beat
	require.NoError(t, json.Unmarshal(p.Bytes(), &beat))
	assert.Equal(t, contract.BeatVersion, beat.Version)
	assert.Equal(t, "b00710ad", beat.Guest.BootID)
	assert.Equal(t, 1, strings.Count(p.String(), "\n"))
}
