// Command standin is the program in those images of a legacy machine whose real content does not build from Go modules or is not wanted.
// What it does depends on the name it is called by.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	name := filepath.Base(os.Args[0])
	var err error
	switch name {
	case "k8s-setup-network-environment":
		err = networkEnvironment(ctx)
	case "calico-node":
		// With flags it is a probe: this process runs, so the container does.
		if len(os.Args) == 1 {
			err = network(ctx)
		}
	case "calico-typha":
		err = serveHealth(ctx)
	case "kube-controllers", "k8s-api-healthz":
		<-ctx.Done()
	case "calico-ipam", "install", "check-status", "calicoctl", "crd-installer", "hyperkube":
		// What these do for Calico there is no Calico for.
	default:
		err = fmt.Errorf("there is no stand-in for %s", name)
	}
	if err != nil {
		stop()
		log.Fatalf("%s: %v", name, err) //nolint:gosec,gocritic // Its own name; the context ended one line above.
	}
}

// networkEnvironment writes the addresses of the machine for systemd units.
func networkEnvironment(ctx context.Context) error {
	address, err := defaultAddress(ctx)
	if err != nil {
		return err
	}
	return os.WriteFile("/etc/network-environment", []byte("DEFAULT_IPV4="+address.String()+"\n"), 0o644) //nolint:gosec // Public.
}

// defaultAddress is the source address of packets to far away. No packet is sent.
func defaultAddress(ctx context.Context) (netip.Addr, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp4", "192.0.2.1:9")
	if err != nil {
		return netip.Addr{}, fmt.Errorf("finding the default address: %w", err)
	}
	defer c.Close() //nolint:errcheck // Nothing was sent.
	address, err := netip.ParseAddrPort(c.LocalAddr().String())
	return address.Addr(), err
}

func serveHealth(ctx context.Context) error {
	s := &http.Server{
		Addr:              "127.0.0.1:9098",
		ReadHeaderTimeout: time.Minute,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }),
	}
	go func() {
		<-ctx.Done()
		_ = s.Close()
	}()
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// network is the pod network: a bridge per node, and routes through IPIP tunnels between nodes. Every node has a piece of the pool that
// follows from its address, so nothing has to be agreed on.
func network(ctx context.Context) error {
	pool, err := netip.ParsePrefix(os.Getenv("CALICO_IPV4POOL_CIDR"))
	if err != nil {
		return fmt.Errorf("reading the pool: %w", err)
	}
	self, err := defaultAddress(ctx)
	if err != nil {
		return err
	}
	own, err := piece(pool, self)
	if err != nil {
		return err
	}
	mtu := os.Getenv("FELIX_IPINIPMTU")
	if err := connect(ctx, own, pool, mtu); err != nil {
		return err
	}
	if err := configure(own, mtu); err != nil {
		return err
	}
	return follow(ctx, pool, self, own)
}

// connect sets up the tunnel device, and the rules that let pods through.
func connect(ctx context.Context, own, pool netip.Prefix, mtu string) error {
	for _, command := range [][]string{
		{"ip", "link", "set", "tunl0", "mtu", mtu, "up"},
		{"ip", "address", "replace", own.Addr().String() + "/32", "dev", "tunl0"},
	} {
		if err := run(ctx, command...); err != nil {
			return err
		}
	}
	// Docker's policy for forwarding is to drop.
	for _, rule := range [][]string{
		{"filter", "FORWARD", "-s", pool.String(), "-j", "ACCEPT"},
		{"filter", "FORWARD", "-d", pool.String(), "-j", "ACCEPT"},
		{"nat", "POSTROUTING", "-s", pool.String(), "!", "-d", pool.String(), "-j", "MASQUERADE"},
	} {
		if run(ctx, append([]string{"iptables", "-w", "-t", rule[0], "-C"}, rule[1:]...)...) == nil {
			continue
		}
		if err := run(ctx, append([]string{"iptables", "-w", "-t", rule[0], "-I"}, rule[1:]...)...); err != nil {
			return err
		}
	}
	return nil
}

// follow keeps routes to the other nodes until ctx ends.
func follow(ctx context.Context, pool netip.Prefix, self netip.Addr, own netip.Prefix) error {
	api, err := newClient()
	if err != nil {
		return err
	}
	// The API is reached through kube-proxy, which may start later; nodes come and go.
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	reported := false
	for {
		if !reported {
			err := api.report(ctx, os.Getenv("NODENAME"), self, own)
			reported = err == nil
			if err != nil {
				log.Printf("reporting the network: %v", err)
			}
		}
		if err := routes(ctx, api, pool, self); err != nil {
			log.Printf("setting routes: %v", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// piece is the /26 of a node: machines live in networks of four addresses, of which each has one.
func piece(pool netip.Prefix, node netip.Addr) (netip.Prefix, error) {
	const bits = 26
	if !node.Is4() || !pool.Addr().Is4() || pool.Bits() > bits-8 {
		return netip.Prefix{}, fmt.Errorf("the pool %s is too small for node %s", pool, node)
	}
	four := func(a netip.Addr) uint32 {
		b := a.As4()
		return binary.BigEndian.Uint32(b[:])
	}
	pieces := uint32(1) << (bits - pool.Bits())
	// The first piece stays free: its first address is the pool's own.
	var first [4]byte
	binary.BigEndian.PutUint32(first[:], four(pool.Masked().Addr())+(1+four(node)>>2%(pieces-1))<<(32-bits))
	return netip.PrefixFrom(netip.AddrFrom4(first), bits), nil
}

// configure writes the CNI configuration under the name that Calico's has.
func configure(own netip.Prefix, mtu string) error {
	config := fmt.Sprintf(`{"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "mtu": %s,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": %q, "rangeStart": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}
]}
`, mtu, own, own.Addr().Next().Next())
	const path = "/host/etc/cni/net.d/10-calico.conflist"
	if err := os.WriteFile(path+".new", []byte(config), 0o644); err != nil { //nolint:gosec // Public.
		return err
	}
	return os.Rename(path+".new", path)
}

func routes(ctx context.Context, api *client, pool netip.Prefix, self netip.Addr) error {
	nodes, err := api.addresses(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if node == self {
			continue
		}
		theirs, err := piece(pool, node)
		if err != nil {
			return err
		}
		if err := run(ctx, "ip", "route", "replace", theirs.String(), "via", node.String(), "dev", "tunl0", "onlink"); err != nil {
			return err
		}
	}
	return nil
}

func run(ctx context.Context, command ...string) error {
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput() //nolint:gosec // Its own commands.
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// client speaks to the API server as the pod's service account.
type client struct {
	http *http.Client
	base string
}

const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

func newClient() (*client, error) {
	ca, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("the service account's authority is no certificate")
	}
	return &client{
		http: &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}},
		base: "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")),
	}, nil
}

func (c *client) do(ctx context.Context, method, path, contentType string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body)) //nolint:gosec // The pod's own API server.
	if err != nil {
		return err
	}
	// Tokens are renewed in place.
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+string(token))
	r.Header.Set("Content-Type", contentType)
	answer, err := c.http.Do(r) //nolint:gosec // The pod's own API server.
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // It is read to its end.
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %.300s", method, path, answer.Status, raw)
	}
	return json.Unmarshal(raw, out)
}

type node struct {
	Status struct {
		Addresses []struct{ Type, Address string }
	}
}

func (c *client) addresses(ctx context.Context) ([]netip.Addr, error) {
	var list struct{ Items []node }
	if err := c.do(ctx, http.MethodGet, "/api/v1/nodes", "application/json", nil, &list); err != nil {
		return nil, err
	}
	var all []netip.Addr
	for _, n := range list.Items {
		for _, a := range n.Status.Addresses {
			if a.Type != "InternalIP" {
				continue
			}
			address, err := netip.ParseAddr(a.Address)
			if err != nil {
				return nil, err
			}
			all = append(all, address)
		}
	}
	return all, nil
}

// report writes what Calico writes into its node.
func (c *client) report(ctx context.Context, name string, self netip.Addr, own netip.Prefix) error {
	now := time.Now().UTC().Format(time.RFC3339)
	var answer map[string]any
	return c.do(ctx, http.MethodPatch, "/api/v1/nodes/"+name+"/status", "application/strategic-merge-patch+json", map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{
			"projectcalico.org/IPv4Address":        netip.PrefixFrom(self, 30).String(),
			"projectcalico.org/IPv4IPIPTunnelAddr": own.Addr().String(),
		}},
		"status": map[string]any{"conditions": []any{map[string]any{
			"type": "NetworkUnavailable", "status": "False", "reason": "CalicoIsUp", "message": "Calico is running on this node",
			"lastHeartbeatTime": now, "lastTransitionTime": now,
		}}},
	}, &answer)
}
