//go:build e2e

package legacyguest_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/ingress"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacyguest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacyguest/userdata"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

const (
	id   = "al9qy"
	zone = id + "." + labnet.IngressDomain
	// The guests are slow, and so is a machine that has other things to do.
	bootLimit = 25 * time.Minute
	poll      = 2 * time.Second
)

// TestMain runs the tests in a network of their own.
func TestMain(m *testing.M) {
	os.Exit(labnet.Main(m.Run))
}

// world is the management cluster's side of two machines: network, names, ingress, bootstrap data.
type world struct {
	image   string
	kernel  guestKernel
	data    map[string]string
	certs   map[string]userdata.Certificate
	roots   *x509.CertPool
	backend map[string]string
	start   time.Time
	clock   clock.Clock
	work    string
}

type guestKernel struct {
	Disk, Kernel, Initrd, Cmdline string
}

// Backends implements ingress.Finder: what the Ingresses of the cluster say.
func (w *world) Backends(host string) ([]ingress.Backend, error) {
	if address, ok := w.backend[host]; ok {
		return []ingress.Backend{{Address: address}}, nil
	}
	return nil, ingress.ErrNoIngress
}

// Exists implements ingress.Finder.
func (w *world) Exists(ingress.Backend) bool { return true }

func newWorld(t *testing.T) *world {
	t.Helper()
	b, err := guest.New(guest.Options{})
	require.NoError(t, err)
	dir, ok, err := b.Current(legacyguest.Recipe())
	require.NoError(t, err)
	if !ok {
		t.Skip("the image is not in the cache: run `lab image build legacy`")
	}
	w := &world{image: dir, clock: clock.RealClock{}, data: map[string]string{}}
	w.start = w.clock.Now()
	raw, err := os.ReadFile(filepath.Join(dir, "image.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &w.kernel))
	// With a directory of one's own, its disks and consoles can be looked at afterwards.
	w.work = os.Getenv("LEGACY_GUEST_DIR")
	if w.work == "" {
		w.work = t.TempDir()
	}

	ca, err := pki.NewAuthority(id, w.clock.Now())
	require.NoError(t, err)
	w.certs, err = userdata.Issue(ca, id, zone, net.IPv4(172, 31, 0, 1))
	require.NoError(t, err)
	w.roots = x509.NewCertPool()
	require.True(t, w.roots.AppendCertsFromPEM(ca.CertPEM()))
	raw, err = os.ReadFile(filepath.Join("..", "..", "testdata", "fixtures", id, "input", "configmaps.yaml"))
	require.NoError(t, err)
	for document := range bytes.SplitSeq(raw, []byte("\n---\n")) {
		var cm corev1.ConfigMap
		require.NoError(t, yaml.Unmarshal(document, &cm))
		if cm.Data[userdata.Key] == "" {
			continue
		}
		w.data[cm.Name], err = userdata.Render(cm.Data[userdata.Key], userdata.Options{
			Zone: zone, Certificates: w.certs, Reserved: userdata.SmallMachine(), Patient: true,
			EncryptionKey: base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32)),
		})
		require.NoError(t, err)
	}

	require.NoError(t, labnet.Setup(2, w.work))
	w.serveNames(t)
	w.serveIngress(t)
	return w
}

func (w *world) say(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("%7.1fs  %s", w.clock.Since(w.start).Seconds(), fmt.Sprintf(format, args...))
}

// serveNames runs the lab's CoreDNS: every name of the lab's zone is the ingress.
func (w *world) serveNames(t *testing.T) {
	t.Helper()
	b, err := builder.New(builder.Options{})
	require.NoError(t, err)
	assets, err := b.Ensure(t.Context(), builder.CoreDNS)
	require.NoError(t, err)
	corefile := filepath.Join(w.work, "Corefile")
	//nolint:dupword // CoreDNS wants class and type, and both are any.
	require.NoError(t, os.WriteFile(corefile, fmt.Appendf(nil, `.:53 {
  bind %s
  template IN A %s {
    answer "{{ .Name }} 5 IN A %s"
  }
  template ANY ANY {
    rcode NXDOMAIN
  }
}
`, labnet.Gateway, labnet.IngressDomain, labnet.IngressIP), 0o600))
	process(t, filepath.Join(w.work, "coredns.log"), assets[builder.CoreDNS], "-conf", corefile)
}

func (w *world) serveIngress(t *testing.T) {
	t.Helper()
	w.backend = map[string]string{"api." + zone: "172.23.11.2:443", "etcd." + zone: "172.23.11.2:2379"}
	log := logrus.New()
	log.SetOutput(io.Discard)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(labnet.IngressIP, "443"))
	require.NoError(t, err)
	server := &ingress.Server{Finder: w, Log: log, Clock: clock.RealClock{}, Drain: time.Second}
	done := make(chan error, 1)
	go func() { done <- server.Serve(t.Context(), listener) }()
	t.Cleanup(func() { assert.NoError(t, <-done) })
}

// process runs a program until the test ends.
func process(t *testing.T, log, program string, args ...string) {
	t.Helper()
	out, err := os.Create(log)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = out, out
	// A test that is killed leaves nothing running. The signal is bound to the test's thread, see there.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Wait() // The end of the test ends it.
		_ = out.Close()
	})
}

// boot starts a machine as the legacy entrypoint does, except for the accelerator and the root disk.
func (w *world) boot(t *testing.T, configMap, hostname, bridge, memory string, more ...string) {
	t.Helper()
	address := netip.MustParsePrefix(bridge)
	tap := plug(t, address)
	dir := filepath.Join(w.work, hostname)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	document, err := userdata.Wrap(w.data[configMap], userdata.Machine{Hostname: hostname, Bridge: address, DNS: []string{labnet.Gateway}})
	require.NoError(t, err)
	config := filepath.Join(dir, "final.json")
	require.NoError(t, os.WriteFile(config, withShell(t, document), 0o600))

	root := filepath.Join(dir, "rootfs.qcow2")
	out, err := exec.CommandContext(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2",
		"-b", filepath.Join(w.image, w.kernel.Disk), root, "8G").CombinedOutput()
	require.NoError(t, err, "%s", out)
	args := []string{
		"-name", hostname, "-nodefaults", "-display", "none", "-no-reboot", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", "2", "-m", memory,
		"-kernel", filepath.Join(w.image, w.kernel.Kernel), "-initrd", filepath.Join(w.image, w.kernel.Initrd), "-append", w.kernel.Cmdline,
		"-fw_cfg", "name=" + userdata.FirmwareName + ",file=" + config,
		"-drive", "if=none,id=rootfs,format=qcow2,discard=on,cache=unsafe,file=" + root,
		"-device", "virtio-blk-pci,drive=rootfs,serial=rootfs",
		"-netdev", "tap,id=" + tap + ",ifname=" + tap + ",script=no,downscript=no",
		"-device", "virtio-net-pci,netdev=" + tap + ",mac=DE:AD:BE:00:00:" + fmt.Sprintf("%02X", address.Addr().As4()[3]),
		"-device", "virtio-rng-pci",
		"-serial", "file:" + filepath.Join(dir, "console.log"),
		"-serial", "unix:" + filepath.Join(dir, "shell.sock") + ",server=on,wait=off",
		"-monitor", "unix:" + filepath.Join(dir, "monitor.sock") + ",server=on,wait=off",
	}
	for _, disk := range []string{"dockerfs", "kubeletfs"} {
		file := filepath.Join(dir, disk+".img")
		require.NoError(t, os.RemoveAll(file))
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		require.NoError(t, os.Truncate(file, 5<<30))
		args = append(args, "-drive", "if=none,id="+disk+",format=raw,discard=on,cache=unsafe,file="+file,
			"-device", "virtio-blk-pci,drive="+disk+",serial="+disk)
	}
	process(t, filepath.Join(dir, "qemu.log"), "qemu-system-x86_64", append(args, more...)...)
	w.say(t, "%s starts", hostname)
}

// withShell adds a shell on the second serial port, for whoever looks for the reason of a failure.
func withShell(t *testing.T, document []byte) []byte {
	t.Helper()
	var d map[string]any
	require.NoError(t, json.Unmarshal(document, &d))
	d["systemd"] = map[string]any{"units": []any{map[string]any{
		"name": "serial-shell.service", "enabled": true,
		"contents": "[Unit]\nDefaultDependencies=no\n[Service]\nEnvironment=TERM=dumb HOME=/root\nExecStart=/bin/bash -i\nStandardInput=tty-force\n" +
			"StandardOutput=tty\nStandardError=tty\nTTYPath=/dev/ttyS1\nRestart=always\n[Install]\nWantedBy=sysinit.target\n",
	}}}
	raw, err := json.Marshal(d)
	require.NoError(t, err)
	return raw
}

// plug makes a bridge with a tap, as flannel and its bridge script do on a host.
func plug(t *testing.T, address netip.Prefix) string {
	t.Helper()
	suffix := strconv.Itoa(int(address.Addr().As4()[3]))
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br-" + id + suffix
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	require.NoError(t, netlink.LinkAdd(bridge))
	require.NoError(t, netlink.AddrAdd(bridge, &netlink.Addr{IPNet: &net.IPNet{
		IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), 32),
	}}))
	attrs = netlink.NewLinkAttrs()
	attrs.Name = "tap-" + id + suffix
	tap := &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP}
	require.NoError(t, netlink.LinkAdd(tap))
	require.NoError(t, netlink.LinkSetMaster(tap, bridge))
	require.NoError(t, netlink.LinkSetUp(tap))
	require.NoError(t, netlink.LinkSetUp(bridge))
	return attrs.Name
}

// eventually waits for something and says when it came.
func (w *world) eventually(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	limit := w.clock.After(bootLimit)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err := check(ctx)
		cancel()
		if err == nil {
			w.say(t, "%s", what)
			return
		}
		select {
		case <-limit:
			require.NoError(t, err, "waiting for: %s", what)
		case <-w.clock.After(poll):
		}
	}
}

func (w *world) get(ctx context.Context, url string, client *http.Client) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }() // It was read to its end, or its reading failed.
	raw, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, raw)
	}
	return string(raw), err
}

// as is a client with one of the cluster's certificates.
func (w *world) as(t *testing.T, name string) *http.Client {
	t.Helper()
	pair, err := tls.X509KeyPair(w.certs[name].Cert, w.certs[name].Key)
	require.NoError(t, err)
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: w.roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}}
}

func (w *world) kubernetes(t *testing.T) kubernetes.Interface {
	t.Helper()
	cert := w.certs[userdata.API]
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host:            "https://api." + zone,
		TLSClientConfig: rest.TLSClientConfig{CAData: cert.CA, CertData: cert.Cert, KeyData: cert.Key},
	})
	require.NoError(t, err)
	return client
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func podReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func nodeIsReady(client kubernetes.Interface, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil && !isReady(n) {
			err = fmt.Errorf("node %s is not ready", name)
		}
		return err
	}
}

// TestLegacyMasterAndWorkerBoot boots a master and a worker from the real bootstrap data and looks at what section 6 of the platform's
// description promises.
func TestLegacyMasterAndWorkerBoot(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w := newWorld(t)
	const master, worker = "master-p1l6x-65dc9fb687-gsq6l", "worker-k3m9a-5c8f9b7d66-x2x9q"
	etcdDir := filepath.Join(w.work, "etcd")
	require.NoError(t, os.MkdirAll(etcdDir, 0o700))
	w.boot(t, "master-al9qy-p1l6x", master, "172.23.11.1/30", "2560M",
		"-fsdev", "local,security_model=none,id=fsdev1,path="+etcdDir, "-device", "virtio-9p-pci,fsdev=fsdev1,mount_tag=etcdshare")

	anyone := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // As the legacy health check does.
	}}
	w.eventually(t, "etcd answers behind the ingress", func(ctx context.Context) error {
		body, err := w.get(ctx, "https://etcd."+zone+"/health", w.as(t, userdata.Etcd))
		if err == nil && !strings.Contains(body, `"true"`) {
			err = fmt.Errorf("unhealthy: %s", body)
		}
		return err
	})
	w.eventually(t, "the kubelet answers on 10248", func(ctx context.Context) error {
		_, err := w.get(ctx, "http://172.23.11.2:10248/healthz", anyone)
		return err
	})
	w.eventually(t, "the API answers on 443", func(ctx context.Context) error {
		_, err := w.get(ctx, "https://172.23.11.2/healthz", anyone)
		return err
	})
	client := w.kubernetes(t)
	w.eventually(t, "the master is ready", nodeIsReady(client, master))
	// The add-on script goes on when the namespace is there: on the real platform, an operator of the management cluster makes it.
	w.eventually(t, "the platform's namespace is there", func(ctx context.Context) error {
		_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "giantswarm"}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	if os.Getenv("LEGACY_GUEST_ONLY") != "master" {
		w.boot(t, "worker-al9qy-k3m9a", worker, "172.23.11.5/30", "1536M")
		w.eventually(t, "the worker is ready", nodeIsReady(client, worker))
	}
	w.eventually(t, "all pods that can be ready are", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, p := range pods.Items {
			if p.Labels["k8s-app"] == "calico-typha" {
				continue // Three want to run, each on a worker of its own.
			}
			if p.Status.Phase != corev1.PodSucceeded && !podReady(&p) {
				return fmt.Errorf("%s is not ready", p.Name)
			}
			seen[p.Name] = true
		}
		for _, name := range []string{"k8s-api-server", "k8s-controller-manager", "k8s-scheduler", "k8s-api-healthz"} {
			if !seen[name+"-"+master] {
				return fmt.Errorf("there is no mirror pod of %s", name)
			}
		}
		return nil
	})

	w.eventually(t, "the add-on script is at its end", func(ctx context.Context) error {
		_, err := client.NetworkingV1().NetworkPolicies("giantswarm").Get(ctx, "default-deny-all", metav1.GetOptions{})
		return err
	})
	n, err := client.CoreV1().Nodes().Get(t.Context(), master, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "v1.21.14", n.Status.NodeInfo.KubeletVersion)
	assert.Contains(t, n.Status.NodeInfo.ContainerRuntimeVersion, "docker://20.10")
	assert.Empty(t, n.Spec.ProviderID)
	for label, value := range map[string]string{
		"role": "master", "ip": "172.23.11.2", "node.kubernetes.io/master": "", "node-role.kubernetes.io/master": "", "kubernetes.io/role": "master",
		"giantswarm.io/provider": "kvm", "kvm-operator.giantswarm.io/version": "3.18.6",
	} {
		got, ok := n.Labels[label]
		assert.True(t, ok && got == value, "label %s is %q", label, got)
	}
	assert.FileExists(t, filepath.Join(etcdDir, "member", "snap", "db"), "etcd's data are on the share")
	bindings, err := client.RbacV1().ClusterRoleBindings().Get(t.Context(), "giantswarm-admin", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "api."+zone, bindings.Subjects[0].Name)
}
