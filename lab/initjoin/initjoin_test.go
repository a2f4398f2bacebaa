package initjoin

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/etcdtest"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

const (
	fixture  = "../../testdata/fixtures/al9qy"
	config   = "/run/kubeadm/kubeadm.yaml"
	manifest = "/etc/kubernetes/manifests/etcd.yaml"
	script   = "/etc/kubernetes/join-existing-etcd.py"
	soon     = time.Minute
	often    = 200 * time.Millisecond
	// newAddress is where the new machine is.
	newAddress = "172.23.10.250"
)

func TestMain(m *testing.M) {
	if labnet.Check() != nil {
		os.Exit(m.Run())
	}
	if !labnet.Inside() {
		for name, legacy := range map[string]bool{builder.Etcd: true, builder.Kubeadm: false} {
			if _, err := etcdtest.Build(context.Background(), legacy, name); err != nil {
				_, _ = fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
	os.Exit(labnet.Main(m.Run))
}

// machine is the new control plane's: this process's own file system, with what kubeadm writes kept apart from the real one.
type machine struct {
	t        *testing.T
	settings struct {
		APIName, EtcdName, EtcdAddress string
		PatienceSeconds                int
	}
	authority *pki.Authority
	// node is the machine's host name.
	node   string
	path   string
	legacy *etcdtest.Cluster
	// etcd is the program, help what it says about its flags.
	etcd, help string
}

// newMachine makes a machine as CAPBK leaves it right before the commands that run before kubeadm, and the etcd it is to join.
func newMachine(t *testing.T) *machine {
	t.Helper()
	if err := labnet.Check(); err != nil {
		t.Skip(err)
	}
	host, err := os.Hostname()
	require.NoError(t, err)
	m := &machine{t: t, node: strings.ToLower(host)}
	cert, err := os.ReadFile(filepath.Join(fixture, "ca", "ca.crt"))
	require.NoError(t, err)
	key, err := os.ReadFile(filepath.Join(fixture, "ca", "ca.key"))
	require.NoError(t, err)
	m.authority, err = pki.LoadAuthority(cert, key, time.Now())
	require.NoError(t, err)

	m.directories()
	m.planned(key)
	m.network()
	// A master's etcd finds itself by its name.
	require.NoError(t, os.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost\n"+m.settings.EtcdAddress+" "+m.settings.EtcdName+"\n"), 0o644))
	m.legacy = etcdtest.Start(t, etcdtest.Options{Legacy: true, Address: m.settings.EtcdAddress, Domain: m.settings.EtcdName, Authority: m.authority})
	require.NoError(t, os.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost\n"), 0o644))

	m.etcd = etcdtest.Programs(t, true, builder.Etcd)[builder.Etcd]
	help, err := exec.CommandContext(t.Context(), m.etcd, "--help").Output()
	require.NoError(t, err)
	m.help = string(help)
	kubeadm := etcdtest.Programs(t, false, builder.Kubeadm)[builder.Kubeadm]
	m.path = filepath.Dir(kubeadm) + string(os.PathListSeparator) + os.Getenv("PATH")
	m.bootstrapped()
	return m
}

// directories gives the machine its own, over the real ones, in this process's mount namespace.
func (m *machine) directories() {
	m.t.Helper()
	for _, dir := range []string{"/etc", "/var/lib"} {
		upper, work := m.t.TempDir(), m.t.TempDir()
		require.NoError(m.t, syscall.Mount("tmpfs", work, "tmpfs", 0, ""))
		for _, sub := range []string{"upper", "work"} {
			require.NoError(m.t, os.Mkdir(filepath.Join(work, sub), 0o755))
		}
		require.NoError(m.t, os.Remove(upper))
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", dir, work, work)
		require.NoError(m.t, syscall.Mount("overlay", dir, "overlay", 0, options))
		m.t.Cleanup(func() {
			require.NoError(m.t, syscall.Unmount(dir, syscall.MNT_DETACH))
			require.NoError(m.t, syscall.Unmount(work, syscall.MNT_DETACH))
		})
	}
	// Without /run there is no init system that kubeadm could ask to start a kubelet.
	require.NoError(m.t, syscall.Mount("tmpfs", "/run", "tmpfs", 0, ""))
	m.t.Cleanup(func() { require.NoError(m.t, syscall.Unmount("/run", syscall.MNT_DETACH)) })
}

// planned writes the files of the control plane that is planned for the recorded cluster.
func (m *machine) planned(key []byte) {
	m.t.Helper()
	source, err := legacy.Open(m.t.Context(), fixture, legacy.Options{})
	require.NoError(m.t, err)
	defer func() { require.NoError(m.t, source.Close()) }()
	picture, err := source.Load(m.t.Context(), "al9qy")
	require.NoError(m.t, err)
	result := translate.New().Translate(picture, translate.Options{CAKey: key})
	controlPlane := result.Object("KubeadmControlPlane", "al9qy")
	require.NotNil(m.t, controlPlane)
	commands, _, err := unstructured.NestedStringSlice(controlPlane.Object, "spec", "kubeadmConfigSpec", "preKubeadmCommands")
	require.NoError(m.t, err)
	require.Equal(m.t, script, commands[len(commands)-1], "nothing that it needs may come after it")

	files, _, err := unstructured.NestedSlice(controlPlane.Object, "spec", "kubeadmConfigSpec", "files")
	require.NoError(m.t, err)
	for _, f := range files {
		file, ok := f.(map[string]any)
		require.True(m.t, ok)
		path, _ := file["path"].(string)
		content, _ := file["content"].(string)
		if !strings.HasPrefix(path, "/etc/kubernetes/patches/") && path != script && path != "/etc/kubernetes/existing-etcd.json" {
			continue
		}
		if file["encoding"] == "base64" {
			raw, err := base64.StdEncoding.DecodeString(content)
			require.NoError(m.t, err)
			content = string(raw)
		}
		var mode os.FileMode
		_, err := fmt.Sscanf(fmt.Sprint(file["permissions"]), "%o", &mode)
		require.NoError(m.t, err)
		m.write(path, content, mode)
	}
	raw, err := os.ReadFile("/etc/kubernetes/existing-etcd.json")
	require.NoError(m.t, err)
	require.NoError(m.t, json.Unmarshal(raw, &m.settings))
}

func (m *machine) write(path, content string, mode os.FileMode) {
	m.t.Helper()
	require.NoError(m.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(m.t, os.WriteFile(path, []byte(content), mode))
}

// network puts both machines' addresses on one bridge.
func (m *machine) network() {
	m.t.Helper()
	for _, line := range []string{
		"link set lo up", "link add machines type bridge", "link set machines up",
		"addr add " + newAddress + "/16 dev machines", "addr add " + m.settings.EtcdAddress + "/16 dev machines", "route add default dev machines src " + newAddress,
	} {
		out, err := exec.CommandContext(m.t.Context(), "ip", strings.Fields(line)...).CombinedOutput()
		require.NoError(m.t, err, "ip %s: %s", line, out)
	}
	m.t.Cleanup(func() {
		out, err := exec.CommandContext(context.WithoutCancel(m.t.Context()), "ip", "link", "del", "machines").CombinedOutput()
		require.NoError(m.t, err, string(out))
	})
}

// bootstrapped writes what CAPBK's cloud-config writes: authorities and kubeadm's configuration.
func (m *machine) bootstrapped() {
	m.t.Helper()
	proxy, err := pki.NewAuthority("front-proxy-ca", time.Now())
	require.NoError(m.t, err)
	for name, pair := range map[string]pki.Pair{"ca": m.authority.Pair(), "etcd/ca": m.authority.Pair(), "front-proxy-ca": proxy.Pair()} {
		m.write("/etc/kubernetes/pki/"+name+".crt", string(pair.Cert), 0o640)
		m.write("/etc/kubernetes/pki/"+name+".key", string(pair.Key), 0o600)
	}
	m.write(config, `apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: al9qy
kubernetesVersion: `+builder.KubernetesVersion+`
controlPlaneEndpoint: `+m.settings.APIName+`:443
etcd: {local: {imageTag: `+strings.TrimPrefix(builder.LegacyEtcdVersion, "v")+`-0}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {bindPort: 443}
nodeRegistration: {name: `+m.node+`, criSocket: unix:///run/containerd/containerd.sock}
patches: {directory: /etc/kubernetes/patches}
`, 0o640)
}

// run runs the script to its end.
func (m *machine) run(ctx context.Context) (code int, said string) {
	m.t.Helper()
	return m.follow(ctx, func(string) {})
}

// follow runs the script to its end, and hears each line as it is said.
func (m *machine) follow(ctx context.Context, hear func(line string)) (code int, said string) {
	m.t.Helper()
	cmd := exec.CommandContext(ctx, script)
	cmd.Env = []string{"PATH=" + m.path, "HOME=/root"}
	out, err := cmd.StdoutPipe()
	require.NoError(m.t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(m.t, cmd.Start())
	var all strings.Builder
	lines := bufio.NewScanner(io.TeeReader(out, &all))
	for lines.Scan() {
		hear(lines.Text())
	}
	require.NoError(m.t, lines.Err())
	var failed *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &failed) {
		require.NoError(m.t, err)
	}
	m.t.Log(all.String())
	return cmd.ProcessState.ExitCode(), all.String()
}

// startKubelet runs etcd as its manifest says, as soon as there is one: what a kubelet does.
func (m *machine) startKubelet() {
	m.t.Helper()
	ctx, stop := context.WithCancel(m.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			raw, err := os.ReadFile(manifest)
			var pod corev1.Pod
			if err == nil {
				err = yaml.Unmarshal(raw, &pod)
			}
			if err == nil && len(pod.Spec.Containers) == 1 {
				etcd := exec.CommandContext(ctx, m.etcd, m.understood(pod.Spec.Containers[0].Command[1:])...)
				etcd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
				etcd.Stdout, etcd.Stderr = m.t.Output(), m.t.Output()
				_ = etcd.Run() // A kubelet starts it again.
			}
			select {
			case <-ctx.Done():
			case <-time.After(often):
			}
		}
	}()
	m.t.Cleanup(func() {
		stop()
		<-ended
	})
}

// understood leaves out what only the etcd of this kubeadm's own release knows: the planned one writes flags of 3.5.
func (m *machine) understood(flags []string) []string {
	var known []string
	for _, f := range flags {
		name, _, _ := strings.Cut(f, "=")
		if strings.Contains(m.help, name+" ") {
			known = append(known, f)
		}
	}
	return known
}

// members is the table that the legacy server shows, by peer address.
func (m *machine) members() map[string]etcd.Row {
	m.t.Helper()
	table, err := m.legacy.Client(m.t).Table(m.t.Context())
	require.NoError(m.t, err)
	all := map[string]etcd.Row{}
	for _, row := range table.Members {
		all[row.PeerURLs[0]] = row
	}
	return all
}

// promote makes the new member a voter as soon as it has caught up, and returns its id.
func (m *machine) promote() {
	m.t.Helper()
	client := m.legacy.Library(m.t)
	require.Eventually(m.t, func() bool {
		for peer, row := range m.members() {
			if peer == "https://"+newAddress+":2380" && row.Role == etcd.Learner {
				_, err := client.MemberPromote(m.t.Context(), uint64(row.ID))
				return err == nil
			}
		}
		return false
	}, soon, often)
}

func (m *machine) hosts() string {
	m.t.Helper()
	raw, err := os.ReadFile("/etc/hosts")
	require.NoError(m.t, err)
	return string(raw)
}

func TestTheFirstMachineJoinsAsALearnerAndWaitsForItsPromotion(t *testing.T) {
	m := newMachine(t)
	before := m.legacy.Library(t)
	_, err := before.Put(t.Context(), "/giantswarm.io/old", "data")
	require.NoError(t, err)
	m.startKubelet()

	promoted := make(chan struct{})
	go func() {
		defer close(promoted)
		m.promote()
	}()
	code, said := m.run(t.Context())
	<-promoted
	require.Zero(t, code, said)
	assert.FileExists(t, config, "kubeadm init goes on with it")
	assert.Contains(t, m.hosts(), newAddress+" "+m.settings.APIName)
	assert.Contains(t, m.hosts(), m.settings.EtcdAddress+" "+m.settings.EtcdName)

	members := m.members()
	require.Len(t, members, 2)
	fresh := members["https://"+newAddress+":2380"]
	assert.False(t, fresh.Learner)
	assert.Equal(t, m.node, fresh.Name, "KCP takes a member for a Node's by its name")
	assert.Equal(t, etcd.Leader, members["https://"+m.settings.EtcdName+":2380"].Role)

	// What was there is here, and what is written here is there.
	own := m.legacy.Library(t, "https://"+newAddress+":2379")
	got, err := own.Get(t.Context(), "/giantswarm.io/old")
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
	_, err = own.Put(t.Context(), "/giantswarm.io/new", "data")
	require.NoError(t, err)

	// A second run, after a crash of the machine, finds everything done.
	code, said = m.run(t.Context())
	require.Zero(t, code, said)
	assert.Contains(t, said, "is known already")
	assert.Len(t, m.members(), 2)
	assert.Equal(t, 1, strings.Count(m.hosts(), m.settings.APIName))
}

func TestAJoiningMachineIsLeftAlone(t *testing.T) {
	m := newMachine(t)
	require.NoError(t, os.Rename(config, "/run/kubeadm/kubeadm-join-config.yaml"))
	code, said := m.run(t.Context())
	require.Zero(t, code)
	assert.Empty(t, said)
	assert.NotContains(t, m.hosts(), m.settings.APIName)
	assert.Len(t, m.members(), 1)
}

// TestAFailureKeepsKubeadmFromFoundingANewEtcd breaks what the script needs, one thing after the other.
func TestAFailureKeepsKubeadmFromFoundingANewEtcd(t *testing.T) {
	for name, c := range map[string]struct {
		sabotage func(m *machine)
		members  int
		why      string
	}{
		"etcd does not answer":       {func(m *machine) { m.impatient(); m.legacy.Members[0].Stop() }, 0, "Connection refused"},
		"another authority":          {func(m *machine) { m.replaceAuthority() }, 1, "CERTIFICATE_VERIFY_FAILED"},
		"the settings are cut off":   {func(m *machine) { m.write("/etc/kubernetes/existing-etcd.json", `{"apiName": "a`, 0o600) }, 1, "JSONDecodeError"},
		"nobody promotes the member": {func(m *machine) { m.impatient() }, 2, "nobody has promoted this member within 3 s: it is a learner"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			c.sabotage(m)
			m.startKubelet()
			code, said := m.run(t.Context())
			assert.Equal(t, 1, code)
			assert.Contains(t, said, c.why)
			assert.NotContains(t, said, "PRIVATE KEY")
			assert.NoFileExists(t, config, "kubeadm init would go on otherwise")
			if c.members > 0 {
				members := m.members()
				assert.Len(t, members, c.members)
				delete(members, "https://"+newAddress+":2380")
				for _, row := range members {
					assert.Equal(t, etcd.Leader, row.Role, "the old member goes on alone")
				}
			}
		})
	}
}

// TestALostAnswerIsAskedForAgain boots the machine while etcd is away for a moment: cloud-init runs nothing twice, and a failure would cost the machine.
func TestALostAnswerIsAskedForAgain(t *testing.T) {
	m := newMachine(t)
	m.legacy.Members[0].Stop()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(m.settings.EtcdAddress, "2379"))
	require.NoError(t, err)
	m.startKubelet()
	// Everybody is hung up on, for the script is not alone: the clients that know the etcd from before try to reach it again.
	silent := make(chan struct{})
	go func() {
		defer close(silent)
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_ = connection.Close()
		}
	}()
	promoted := make(chan struct{})
	back := sync.OnceFunc(func() {
		require.NoError(t, listener.Close())
		<-silent
		m.legacy.Members[0].StartAgain()
		go func() {
			defer close(promoted)
			m.promote()
		}()
	})
	code, said := m.follow(t.Context(), func(line string) {
		if strings.Contains(line, "asking etcd again: ") {
			back()
		}
	})
	require.Contains(t, said, "asking etcd again: ")
	<-promoted
	require.Zero(t, code, said)
	assert.Len(t, m.members(), 2)
}

// TestNothingIsFoundedWithoutAMember starts etcd as kubeadm would, had the script neither run nor failed: the planned patch alone keeps it from
// founding a cluster.
func TestNothingIsFoundedWithoutAMember(t *testing.T) {
	m := newMachine(t)
	for _, phase := range []string{"certs all", "etcd local"} {
		kubeadm := filepath.Join(filepath.SplitList(m.path)[0], builder.Kubeadm)
		out, err := exec.CommandContext(t.Context(), kubeadm, append(append([]string{"init", "phase"}, strings.Fields(phase)...), "--config", config)...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	raw, err := os.ReadFile(manifest)
	require.NoError(t, err)
	var pod corev1.Pod
	require.NoError(t, yaml.Unmarshal(raw, &pod))
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	server := exec.CommandContext(ctx, m.etcd, m.understood(pod.Spec.Containers[0].Command[1:])...)
	out, err := server.CombinedOutput()
	require.Error(t, err)
	require.NoError(t, ctx.Err(), "it goes on running")
	assert.Contains(t, string(out), "cannot fetch cluster info from peer urls")
}

func (m *machine) replaceAuthority() {
	m.t.Helper()
	other, err := pki.NewAuthority("other", time.Now())
	require.NoError(m.t, err)
	m.write("/etc/kubernetes/pki/etcd/ca.crt", string(other.Pair().Cert), 0o640)
	m.write("/etc/kubernetes/pki/etcd/ca.key", string(other.Pair().Key), 0o600)
}

func (m *machine) impatient() {
	m.t.Helper()
	m.settings.PatienceSeconds = 3
	raw, err := json.Marshal(map[string]any{
		"apiName": m.settings.APIName, "etcdName": m.settings.EtcdName, "etcdAddress": m.settings.EtcdAddress, "patienceSeconds": 3,
	})
	require.NoError(m.t, err)
	m.write("/etc/kubernetes/existing-etcd.json", string(raw), 0o600)
}
