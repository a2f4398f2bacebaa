package unattended

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
)

const systemd = "/lib/systemd/systemd"

// beginsManager goes into a control group of its own and begins a systemd, one of a user's, there, with nothing of the machine's own control groups and run-time
// files in sight. A manager for the whole system would do more than run units: it clears temporary directories as if the machine had just booted.
const beginsManager = `
set -e
echo $$ > "$1/cgroup.procs"
exec unshare --cgroup --mount --pid --fork --kill-child --mount-proc /bin/sh -ec '
	mount -t tmpfs none /run
	mkdir -p /run/systemd/system
	if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
		mount -t cgroup2 none /sys/fs/cgroup
	else
		mount -t tmpfs none /sys/fs/cgroup
		mkdir /sys/fs/cgroup/systemd
		mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
	fi
	` + systemd + ` --user --unit=lab.target --log-target=console'
`

// TestTheTimerRuns has a real systemd run the units of docs/unattended. Where their files are, how often the timer fires, and what only a manager of the whole system can do (another user,
// a file system that is protected) is the lab's.
func TestTheTimerRuns(t *testing.T) {
	if cluster == nil {
		t.Skip("needs a cluster, and there is none with -short")
	}
	if _, err := os.Stat(systemd); err != nil {
		t.Skip("systemd is not installed")
	}
	load(t)
	dir, self := t.TempDir(), program(t)
	kubeconfig, err := cluster.KubeconfigFor("timer", "system:masters")
	require.NoError(t, err)
	said, units := filepath.Join(dir, "said"), filepath.Join(dir, "systemd", "user")
	service := shipped(t, "migrate@.service", "/usr/local/bin/migrate", self, "/etc/migrate", dir, "/var/lib/migrate", dir, "StateDirectory=migrate\n", "", "User=migrate\n", "",
		"ProtectSystem=strict\n", "", "ProtectHome=true\n", "", "PrivateTmp=true\n", "Environment="+programEnv+"=1\nStandardError=append:"+said+"\n")
	require.NoError(t, os.MkdirAll(units, 0o700))
	for file, text := range map[string]string{
		filepath.Join(dir, "kubeconfig"):         string(kubeconfig),
		filepath.Join(dir, id+".yaml"):           playbook,
		filepath.Join(units, "migrate@.service"): service,
		filepath.Join(units, "migrate@.timer"):   shipped(t, "migrate@.timer", "OnCalendar=*:0/15", "OnCalendar=*:*:0/5"),
		filepath.Join(units, "lab.target"):       "[Unit]\nWants=migrate@" + id + ".timer\n",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	environ := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "XDG_RUNTIME_DIR=" + dir, "XDG_CONFIG_HOME=" + dir, "USER=timer"}
	log := filepath.Join(dir, "log")
	manager(t, environ, log)

	heard := func(file string) string {
		text, _ := os.ReadFile(file)
		return string(text)
	}
	twice := assert.Eventually(t, func() bool {
		return strings.Count(heard(said), "Nothing was written. migrate check "+id+" --playbook ") > 1
	}, patience, time.Second)
	require.True(t, twice, heard(log)+heard(said))
	var state string
	atRest := assert.Eventually(t, func() bool {
		command := exec.CommandContext(t.Context(), "systemctl", "--user", "show", "migrate@"+id+".service", "--property", "Result,ExecMainStatus,ActiveState")
		command.Env = environ
		out, err := command.CombinedOutput()
		state = string(out)
		return err == nil && strings.Contains(state, "ActiveState=inactive\n")
	}, patience, 100*time.Millisecond)
	require.True(t, atRest, state)
	assert.Contains(t, state, "ExecMainStatus="+strconv.Itoa(int(cli.CodeBlocked))+"\n")
	assert.Contains(t, state, "Result=success\n", "a check that is in the way is an ordinary end")
}

// manager begins a systemd that ends with the test, and writes what it says to a file.
func manager(t *testing.T, environ []string, log string) {
	t.Helper()
	group := filepath.Join(controlGroup(t), "lab-timer-"+strconv.Itoa(os.Getpid()))
	require.NoError(t, os.Mkdir(group, 0o755))
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	file, err := os.Create(log)
	require.NoError(t, err)
	command := exec.CommandContext(ctx, "/bin/sh", "-c", beginsManager, "manager", group)
	command.Env, command.Stdout, command.Stderr = environ, file, file
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		end()
		_ = command.Wait() // it was ended
		require.NoError(t, file.Close())
		var groups []string
		require.NoError(t, filepath.WalkDir(group, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				groups = append(groups, path)
			}
			return err
		}))
		slices.Reverse(groups)
		for _, path := range groups {
			assert.Eventually(t, func() bool { return os.Remove(path) == nil }, patience, 100*time.Millisecond, path)
		}
	})
}

// controlGroup is the directory of the control group that this process is in: that of systemd's own hierarchy, or of the only one there is.
func controlGroup(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	group := ""
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		require.Len(t, parts, 3)
		switch parts[1] {
		case "name=systemd":
			return filepath.Join("/sys/fs/cgroup/systemd", parts[2])
		case "":
			group = filepath.Join("/sys/fs/cgroup", parts[2])
		}
	}
	return group
}

// shipped is a file of docs/unattended, with parts of it replaced, which have to be there.
func shipped(t *testing.T, name string, replaced ...string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "unattended", name))
	require.NoError(t, err)
	for i := 0; i < len(replaced); i += 2 {
		assert.Contains(t, string(raw), replaced[i], name)
	}
	return strings.NewReplacer(replaced...).Replace(string(raw))
}

func program(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return self
}
