package mc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

const (
	// kubeletPort is where a host answers for logs and exec.
	kubeletPort = 10250
	// What a host says it has. Nobody measures it: the machine has to cope.
	hostCPU, hostMemory = "16", "32Gi"
)

// HostName is the name of host i, counted from 1: of its Node, its process and
// its log.
func HostName(i int) string { return "host-" + strconv.Itoa(i) }

// zone of host i: a, b, c and so on.
func zone(i int) string { return string(rune('a' + (i-1)%26)) }

// buildPrograms compiles the programs of the working tree that hosts run or
// consist of, or the provider's alone.
func buildPrograms(ctx context.Context, opts Options) (builder.Assets, error) {
	names := opts.localPrograms()
	if len(names) == 0 {
		return nil, nil //nolint:nilnil // No hosts, no programs.
	}
	programs := opts.Programs
	if programs == nil {
		var err error
		if programs, err = opts.Builder.Local(ctx, opts.Source, names...); err != nil {
			return nil, err
		}
	}
	needed := []string{builder.LabHost, builder.LabIngress}
	if opts.Hosts == 0 {
		needed = names
	}
	for _, name := range needed {
		if programs[name] == "" {
			return nil, fmt.Errorf("starting hosts: the working tree has no %s", name)
		}
	}
	return programs, nil
}

// prepareHosts makes the network and puts the programs where they live as long
// as the cluster: a rebuild must not change what a restarted pod runs.
func (c *Cluster) prepareHosts() error {
	if err := labnet.Setup(c.opts.Hosts, c.dir); err != nil {
		return err
	}
	bin := filepath.Join(c.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil { //nolint:gosec // Public binaries.
		return fmt.Errorf("creating the cluster's directory: %w", err)
	}
	own := builder.Assets{}
	for name, path := range c.programs {
		own[name] = filepath.Join(bin, name)
		if err := linkOrCopy(path, own[name]); err != nil {
			return fmt.Errorf("keeping a copy of %s: %w", name, err)
		}
	}
	c.programs = own
	return nil
}

func linkOrCopy(from, to string) error {
	if err := os.Link(from, to); err == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()                                                      //nolint:errcheck // Opened for reading.
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755) //nolint:gosec // Public binaries.
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// relay carries connections from outside the private network to the API server.
func (c *Cluster) relay(ctx context.Context) {
	c.public = c.URL()
	if c.opts.Outside == nil {
		return
	}
	c.public = "https://" + c.opts.Outside.Addr().String()
	ctx, c.background = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		if err := labnet.Relay(ctx, c.opts.Outside, address(c.ports.apiServer), c.opts.Log); err != nil {
			c.opts.Log.WithError(err).Error("nobody reaches the API server from outside any more")
		}
	}()
}

// startNetwork starts what makes pods possible. Steps: the rights of its users;
// at the same time the cluster DNS, the ingress and the hosts; then kube-proxy,
// which asks for its Node once.
func (c *Cluster) startNetwork(ctx context.Context) error {
	if err := c.installSystem(ctx); err != nil {
		return fmt.Errorf("preparing the cluster for hosts: %w", err)
	}
	images, err := c.writeImages()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg, hosts sync.WaitGroup
	start := func(group *sync.WaitGroup, do func() (Process, error)) {
		group.Go(func() {
			if err := c.runMade(ctx, do); err != nil {
				cancel(err)
			}
		})
	}
	start(&wg, c.coreDNS)
	start(&wg, c.ingress)
	for i := range c.opts.Hosts {
		start(&hosts, func() (Process, error) { return c.host(i+1, images) })
	}
	hosts.Wait()
	if context.Cause(ctx) == nil {
		start(&wg, c.kubeProxy)
	}
	wg.Wait()
	return context.Cause(ctx)
}

// host describes the agent of one host. It runs in a process-id namespace of
// its own, with everything it starts: when the host ends, so do its pods, as
// those of a machine that loses power.
func (c *Cluster) host(i int, images string) (Process, error) {
	name := HostName(i)
	config, err := c.writeKubeconfig(name, "system:node:"+name, "system:nodes")
	if err != nil {
		return Process{}, err
	}
	pair, err := c.ca.Issue(pki.Names{
		CommonName: "system:node:" + name, Organizations: []string{"system:nodes"},
		DNS: []string{name}, IPs: []net.IP{net.ParseIP(labnet.HostIP(i))},
	})
	if err != nil {
		return Process{}, err
	}
	if err := pair.Write(c.pki(), name); err != nil {
		return Process{}, err
	}
	root := filepath.Join(c.dir, "hosts", name)
	if err := os.MkdirAll(root, 0o755); err != nil { //nolint:gosec // Pods of any user live below.
		return Process{}, fmt.Errorf("creating the directory of %s: %w", name, err)
	}
	argv := []string{
		"unshare", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", "--",
		c.programs[builder.LabHost], "run", "--name", name, "--kubeconfig", config, "--root", root,
		"--bridge", labnet.Bridge, "--pod-cidr", labnet.PodCIDR(i),
		"--gateway", labnet.Gateway, "--bridge-prefix", strconv.Itoa(labnet.BridgePrefix), "--host-network",
		"--cluster-dns", labnet.ClusterDNS, "--cluster-domain", labnet.ClusterDomain,
		"--image-map", images, "--labels", "topology.kubernetes.io/region=lab,topology.kubernetes.io/zone=" + zone(i),
		"--cpu", hostCPU, "--memory", hostMemory,
		"--listen", net.JoinHostPort(labnet.HostIP(i), strconv.Itoa(kubeletPort)),
		"--tls-cert", c.file(name + ".crt"), "--tls-key", c.file(name + ".key"), "--client-ca", c.file("ca.crt"),
	}
	for path, dir := range c.opts.HostPaths {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // Pods of any user read it.
			return Process{}, fmt.Errorf("creating the directory for %s: %w", path, err)
		}
		argv = append(argv, "--host-path", path+"="+dir)
	}
	return Process{
		Name: name, Version: "local", URL: "https://" + net.JoinHostPort(labnet.HostIP(i), strconv.Itoa(kubeletPort)),
		Argv:  append(argv, c.opts.ExtraArgs[builder.LabHost]...),
		Ready: func(ctx context.Context) error { return c.nodeReady(ctx, name) },
	}, nil
}

func (c *Cluster) nodeReady(ctx context.Context, name string) error {
	node := &unstructured.Unstructured{}
	node.SetAPIVersion("v1")
	node.SetKind("Node")
	if err := c.client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return fmt.Errorf("looking at Node %s: %w", name, err)
	}
	conditions, _, err := unstructured.NestedSlice(node.Object, "status", "conditions")
	if err != nil {
		return fmt.Errorf("reading the conditions of Node %s: %w", name, err)
	}
	for _, x := range conditions {
		if condition, ok := x.(map[string]any); ok && condition["type"] == "Ready" {
			if condition["status"] == "True" {
				return nil
			}
			return fmt.Errorf("Node %s is not ready: %v", name, condition["message"]) //nolint:staticcheck // Node is a kind.
		}
	}
	return fmt.Errorf("Node %s does not say whether it is ready", name) //nolint:staticcheck // Node is a kind.
}

// kubeProxy makes Services work. Everything is masqueraded: pods share one
// bridge, so a pod would answer a neighbour directly, past the translation.
func (c *Cluster) kubeProxy() (Process, error) {
	config, err := c.writeKubeconfig(builder.KubeProxy, "system:kube-proxy")
	if err != nil {
		return Process{}, err
	}
	argv := []string{
		c.assets[builder.KubeProxy],
		"--kubeconfig=" + config,
		// All hosts share the namespace, so one proxy serves them in the name of one.
		"--hostname-override=" + HostName(1),
		"--proxy-mode=iptables", "--masquerade-all=true",
		"--healthz-bind-address=" + address(c.ports.proxy), "--metrics-bind-address=" + address(c.ports.proxyMetrics),
		// The limits of connection tracking belong to the machine; leave them.
		"--conntrack-max-per-core=0", "--conntrack-min=0",
		"--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s",
		"--iptables-min-sync-period=100ms",
	}
	return Process{
		Name: builder.KubeProxy, Version: builder.KubernetesVersion, URL: "http://" + address(c.ports.proxy),
		Argv:  slices.Concat(argv, c.opts.ExtraArgs[builder.KubeProxy]),
		Ready: healthy(c.probe, "http://"+address(c.ports.proxy)+"/healthz"),
	}, nil
}

// coreDNS answers for Services and for the ingress's names. All other names do
// not exist: nothing of the lab may ask the world outside.
func (c *Cluster) coreDNS() (Process, error) {
	config, err := c.writeKubeconfig(builder.CoreDNS, userDNS)
	if err != nil {
		return Process{}, err
	}
	corefile := filepath.Join(c.dir, "Corefile")
	if err := os.WriteFile(corefile, []byte(c.corefile(config)), 0o600); err != nil {
		return Process{}, fmt.Errorf("writing the configuration of the cluster DNS: %w", err)
	}
	return Process{
		Name: builder.CoreDNS, Version: builder.CoreDNSVersion, URL: "dns://" + net.JoinHostPort(labnet.Gateway, "53"),
		Argv:  append([]string{c.assets[builder.CoreDNS], "-conf", corefile}, c.opts.ExtraArgs[builder.CoreDNS]...),
		Ready: healthy(c.probe, "http://"+address(c.ports.dns)+"/ready"),
	}, nil
}

func (c *Cluster) corefile(config string) string {
	ingress := strings.ReplaceAll(labnet.IngressDomain, ".", `\.`)
	//nolint:dupword // template IN ANY
	return fmt.Sprintf(`%s:53 in-addr.arpa:53 ip6.arpa:53 {
    bind %s
    errors
    ready %s
    kubernetes %[1]s in-addr.arpa ip6.arpa {
        kubeconfig %[4]s
        pods insecure
        ttl 1
    }
    loadbalance
}
%[5]s:53 {
    bind %[2]s
    errors
    template IN A %[5]s {
        match (^|\.)%[6]s\.$
        answer "{{ .Name }} 30 IN A %[7]s"
    }
    template ANY ANY %[5]s {
        rcode NOERROR
    }
}
.:53 {
    bind %[2]s
    errors
    template ANY ANY . {
        rcode NXDOMAIN
    }
}
`, labnet.ClusterDomain, labnet.Gateway, address(c.ports.dns), config, labnet.IngressDomain, ingress, labnet.IngressIP)
}

// ingress describes the SNI-passthrough proxy.
func (c *Cluster) ingress() (Process, error) {
	config, err := c.writeKubeconfig(builder.LabIngress, userIngress)
	if err != nil {
		return Process{}, err
	}
	argv := []string{
		c.programs[builder.LabIngress], "--kubeconfig", config, "--class", IngressClass, "--address", labnet.IngressIP,
		"--listen", net.JoinHostPort(labnet.IngressIP, "443"), "--listen", net.JoinHostPort(labnet.IngressIP, "6443"),
		"--health", address(c.ports.ingress),
	}
	return Process{
		Name: builder.LabIngress, Version: "local", URL: "https://" + net.JoinHostPort(labnet.IngressIP, "443"),
		Argv:  slices.Concat(argv, c.opts.ExtraArgs[builder.LabIngress]),
		Ready: healthy(c.probe, "http://"+address(c.ports.ingress)+"/readyz"),
	}, nil
}
