package labnet_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
)

const (
	// insideEnv makes the test binary make a network, say so, and wait.
	insideEnv = "LABNET_TEST_INSIDE"
	soon      = time.Minute
	often     = 20 * time.Millisecond
)

func TestMain(m *testing.M) {
	if os.Getenv(insideEnv) != "" {
		os.Exit(labnet.Main(playInside))
	}
	os.Exit(m.Run())
}

// playInside says where it is and, with an address given, carries connections
// to it until its input ends.
func playInside() int {
	if err := labnet.Setup(2, os.TempDir()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(os.Getpid(), own)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return 1
	}
	return 7
}

func needRoot(t *testing.T) {
	t.Helper()
	if err := labnet.Check(); err != nil {
		t.Skip(err)
	}
}

type inside struct {
	cmd   *exec.Cmd
	stdin io.Closer
	pid   string
	ns    string
}

func start(t *testing.T) inside {
	t.Helper()
	needRoot(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	fields := strings.Fields(line)
	require.Len(t, fields, 2)
	return inside{cmd: cmd, stdin: stdin, pid: fields[0], ns: fields[1]}
}

// in runs a command in the namespaces of a process.
func (i inside) in(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nsenter", append([]string{"--target", i.pid, "--net", "--mount"}, argv...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

func TestNetworkIsPrivateAndComplete(t *testing.T) {
	t.Parallel()
	before, err := os.ReadFile("/etc/resolv.conf")
	require.NoError(t, err)
	i := start(t)

	own, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	assert.NotEqual(t, own, i.ns)
	addresses := i.in(t, "ip", "-brief", "address")
	for _, want := range []string{"127.0.0.1/8", "10.100.0.1/16", "10.100.0.2/16"} {
		assert.Contains(t, addresses, want)
	}
	assert.NotContains(t, addresses, labnet.HostIP(1), "hosts bring their own addresses")
	assert.Contains(t, i.in(t, "ip", "route"), "10.96.0.0/16 dev lab0")
	assert.Contains(t, i.in(t, "cat", "/etc/resolv.conf"), "nameserver 10.100.0.1")
	assert.Equal(t, "1\n", i.in(t, "cat", "/proc/sys/net/ipv4/ip_forward"))

	after, err := os.ReadFile("/etc/resolv.conf")
	require.NoError(t, err)
	assert.Equal(t, string(before), string(after), "the outside keeps its own")
	_, err = net.InterfaceByName(labnet.Bridge)
	require.Error(t, err)

	require.NoError(t, i.stdin.Close())
	var exit *exec.ExitError
	require.ErrorAs(t, i.cmd.Wait(), &exit)
	assert.Equal(t, 7, exit.ExitCode(), "the exit code comes through")
}

func TestKilledOuterProcessTakesTheInnerAlong(t *testing.T) {
	t.Parallel()
	i := start(t)

	require.NoError(t, i.cmd.Process.Kill())
	require.Error(t, i.cmd.Wait())

	assert.Eventually(t, func() bool {
		raw, err := os.ReadFile("/proc/" + i.pid + "/stat")
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || strings.Contains(string(raw), ") Z ")
	}, soon, often)
}

func TestSetupOutsideIsRefused(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, labnet.Setup(1, t.TempDir()), labnet.ErrNotPrivate)
}

func TestRelayCarriesBothWaysAndEnds(t *testing.T) {
	t.Parallel()
	listen := func() net.Listener {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		return l
	}
	server, outside := listen(), listen()
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				// The answer comes only after the question has ended.
				raw, _ := io.ReadAll(conn)
				_, _ = conn.Write([]byte(strings.ToUpper(string(raw))))
				_ = conn.Close()
			}()
		}
	}()
	t.Cleanup(func() { _ = server.Close() })
	log := logrus.New()
	log.SetOutput(t.Output())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- labnet.Relay(ctx, outside, server.Addr().String(), log) }()

	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", outside.Addr().String())
	require.NoError(t, err)
	_, err = conn.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, "HELLO", string(answer))

	cancel()
	require.NoError(t, <-ended)
}

func TestEverythingMissingIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	bare := labnet.Machine{
		LookPath:     func(name string) (string, error) { return "", exec.ErrNotFound },
		Stat:         func(string) (fs.FileInfo, error) { return nil, fs.ErrNotExist },
		Capabilities: func() (uint64, error) { return 0, nil },
	}

	err := bare.Check()

	var missing *labnet.MissingError
	require.ErrorAs(t, err, &missing)
	for _, want := range []string{
		"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "run it as root", "qemu-system-x86_64", "qemu-img", "iptables", "/dev/net/tun", "/etc/resolv.conf",
		"apt-get install --no-install-recommends qemu-system-x86 qemu-utils iproute2 iptables util-linux",
	} {
		require.ErrorContains(t, err, want)
	}
}
