package agent_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/container"
)

const (
	// insideEnv says that the process is in namespaces of its own.
	insideEnv  = "LAB_HOST_TEST_INSIDE"
	assetsEnv  = "KUBEBUILDER_ASSETS"
	gateway    = "10.100.0.1"
	startLimit = 4 * time.Minute
)

// cluster is the API server that all tests share.
type cluster struct {
	dir     string
	config  *rest.Config
	client  kubernetes.Interface
	ca      *authority
	kubecfg string
}

var shared *cluster //nolint:gochecknoglobals // One API server for all tests.

// TestMain plays the shim and lab-host themselves, moves into namespaces of its own, starts an API server there and runs the tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == container.ShimCommand || os.Args[1] == "run") {
		if err := cli.New().Execute(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(insideEnv) == "" {
		os.Exit(moveInside())
	}
	// The API server ends with this thread.
	runtime.LockOSThread()
	dir, err := os.MkdirTemp("", "lab-host-test")
	if err == nil {
		shared, err = startCluster(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "starting an API server:", err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func moveInside() int {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "skipped: containers need root")
		return 0
	}
	if _, err := assets(); err != nil {
		fmt.Fprintln(os.Stderr, "skipped:", err)
		return 0
	}
	runtime.LockOSThread()
	cmd := exec.CommandContext(context.Background(), os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	err := cmd.Run()
	var exited *exec.ExitError
	switch {
	case errors.As(err, &exited):
		return exited.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	default:
		return 0
	}
}

// assets finds etcd and kube-apiserver: in $KUBEBUILDER_ASSETS, or the newest that the lab has built.
func assets() (map[string]string, error) {
	found := map[string]string{}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		candidates := []string{filepath.Join(os.Getenv(assetsEnv), name)}
		if os.Getenv(assetsEnv) == "" {
			cache := os.Getenv("LAB_CACHE")
			if cache == "" {
				base, err := os.UserCacheDir()
				if err != nil {
					return nil, err
				}
				cache = filepath.Join(base, "cluster-api-provider-kvm")
			}
			var err error
			if candidates, err = filepath.Glob(filepath.Join(cache, "bin", name+"-v*", name)); err != nil {
				return nil, err
			}
		}
		slices.Sort(candidates)
		for _, c := range candidates {
			if _, err := os.Stat(c); err == nil {
				found[name] = c
			}
		}
		if found[name] == "" {
			return nil, fmt.Errorf("no %s: run `make lab`, or set %s", name, assetsEnv)
		}
	}
	return found, nil
}

func startCluster(dir string) (*cluster, error) {
	if err := network(); err != nil {
		return nil, err
	}
	programs, err := assets()
	if err != nil {
		return nil, err
	}
	ca, err := newAuthority(dir)
	if err != nil {
		return nil, err
	}
	if err := ca.issue("client", "kube-apiserver", nil); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "tokens"), []byte("test-token,admin,1,system:masters\n"), 0o600); err != nil {
		return nil, err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, argv := range [][]string{
		{programs["etcd"], "--data-dir", in("etcd"), "--unsafe-no-fsync", "--log-level=error"},
		{
			programs["kube-apiserver"], "--etcd-servers=http://127.0.0.1:2379", "--cert-dir=" + in("apiserver"), "--secure-port=6443",
			"--advertise-address=" + gateway, "--service-cluster-ip-range=10.96.0.0/16", "--token-auth-file=" + in("tokens"),
			"--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc", "--allow-privileged",
			"--service-account-key-file=" + in("ca.key"), "--service-account-signing-key-file=" + in("ca.key"),
			"--kubelet-client-certificate=" + in("client.crt"), "--kubelet-client-key=" + in("client.key"),
			"--kubelet-certificate-authority=" + in("ca.crt"),
		},
	} {
		log, err := os.Create(in(filepath.Base(argv[0]) + ".log"))
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(context.Background(), argv[0], argv[1:]...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
	}
	c := &cluster{dir: dir, ca: ca, kubecfg: in("kubeconfig")}
	c.config = &rest.Config{
		Host: "https://127.0.0.1:6443", BearerToken: "test-token", TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 200, Burst: 400,
	}
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
		"clusters: [{name: c, cluster: {server: 'https://127.0.0.1:6443', insecure-skip-tls-verify: true}}]\n" +
		"users: [{name: u, user: {token: test-token}}]\n"
	if err := os.WriteFile(c.kubecfg, []byte(text), 0o600); err != nil {
		return nil, err
	}
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return nil, err
	}
	return c, c.waitReady()
}

func (c *cluster) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := c.client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			log, _ := os.Open(filepath.Join(c.dir, "kube-apiserver.log"))
			_, _ = io.Copy(os.Stderr, log)
			return err
		}
	}
}

// network makes the lab's bridge and a /proc of the own PID namespace.
func network() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "lab0"
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return err
	}
	p := netip.MustParsePrefix(gateway + "/16")
	address := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(16, 32)}}
	if err := netlink.AddrAdd(bridge, address); err != nil {
		return err
	}
	return netlink.LinkSetUp(bridge)
}

// authority signs certificates of the tests.
type authority struct {
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(dir string) (*authority, error) {
	a := &authority{dir: dir, pool: x509.NewCertPool()}
	if err := a.issue("ca", "test-ca", nil); err != nil {
		return nil, err
	}
	a.pool.AddCert(a.cert)
	return a, nil
}

// issue writes NAME.crt and NAME.key. The first one is the authority itself.
func (a *authority) issue(name, subject string, ips []net.IP) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: subject}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: ips, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return err
	}
	if a.cert == nil {
		a.key = key
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			return err
		}
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(a.dir, name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(a.dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), 0o600)
}

func (a *authority) serving(name string, more ...net.IP) (*tls.Config, error) {
	if err := a.issue(name, name, append(more, net.ParseIP(gateway))); err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key"))
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.pool}, nil
}
