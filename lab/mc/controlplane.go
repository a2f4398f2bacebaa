package mc

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

// Names of certificates, as file names below pki/.
const (
	certEtcd              = "etcd"
	certEtcdClient        = "etcd-client"
	certAPIServer         = "apiserver"
	certKubeletClient     = "apiserver-kubelet-client"
	certControllerManager = "controller-manager"
	certScheduler         = "scheduler"
	frontProxy            = "front-proxy-client"
)

// certificates lists what the components need. Servers are reached by address
// only, except for the API server, which pods know by its Service.
func (c *Cluster) certificates() map[string]pki.Names {
	here := []net.IP{net.ParseIP(loopback)}
	apiServer := pki.Names{
		CommonName: "kube-apiserver",
		DNS:        []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		IPs:        here,
	}
	if ip := firstServiceIP(c.opts.ServiceCIDR); ip != nil {
		apiServer.IPs = append(apiServer.IPs, ip)
	}
	if c.opts.Hosts > 0 {
		apiServer.IPs = append(apiServer.IPs, net.ParseIP(labnet.Gateway))
	}
	return map[string]pki.Names{
		certEtcd:          {CommonName: "etcd", DNS: []string{"localhost"}, IPs: here},
		certEtcdClient:    {CommonName: "kube-apiserver-etcd-client"},
		certAPIServer:     apiServer,
		certKubeletClient: {CommonName: "kube-apiserver-kubelet-client", Organizations: []string{"system:masters"}},
		// Serving certificates for health and metrics: without them, each would
		// make itself an RSA key at start.
		certControllerManager: {CommonName: "kube-controller-manager", DNS: []string{"localhost"}, IPs: here},
		certScheduler:         {CommonName: "kube-scheduler", DNS: []string{"localhost"}, IPs: here},
	}
}

func firstServiceIP(cidr string) net.IP {
	_, network, err := net.ParseCIDR(cidr)
	if err != nil {
		return nil // The API server reports the bad flag with a better message.
	}
	ip := network.IP
	ip[len(ip)-1]++
	return ip
}

// startControlPlane starts etcd and the API server, one after the other: an API
// server that finds no etcd waits a second before it tries again.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	etcd, err := c.etcd()
	if err != nil {
		return err
	}
	if err := c.Run(ctx, etcd); err != nil {
		return err
	}
	if err := c.Run(ctx, c.apiServer("https://"+address(c.ports.etcd))); err != nil {
		return err
	}
	mapper, err := apiutil.NewDynamicRESTMapper(c.config, c.probe)
	if err != nil {
		return fmt.Errorf("making a REST mapper: %w", err)
	}
	c.client, err = client.New(c.config, client.Options{HTTPClient: c.probe, Mapper: mapper})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	c.served = c.opts.Clock.Since(c.began)
	c.say("API served after %s at %s\n", round(c.served), c.public)
	return nil
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

func (c *Cluster) etcd() (Process, error) {
	url := "https://" + address(c.ports.etcd)
	peer := "https://" + address(c.ports.etcdPeer)
	argv := []string{
		c.assets[builder.Etcd],
		"--name=lab", "--data-dir=" + c.dir + "/etcd", "--log-level=warn",
		"--listen-client-urls=" + url, "--advertise-client-urls=" + url,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=lab=" + peer,
		"--client-cert-auth", "--trusted-ca-file=" + c.file("ca.crt"),
		"--cert-file=" + c.file(certEtcd+".crt"), "--key-file=" + c.file(certEtcd+".key"),
		"--peer-client-cert-auth", "--peer-trusted-ca-file=" + c.file("ca.crt"),
		"--peer-cert-file=" + c.file(certEtcd+".crt"), "--peer-key-file=" + c.file(certEtcd+".key"),
		// The data dies with the cluster: syncing it to disk is only waiting.
		"--unsafe-no-fsync",
		// A single member elects itself after one election timeout.
		"--heartbeat-interval=50", "--election-timeout=250",
	}
	httpClient, err := c.clientWith(certEtcdClient)
	if err != nil {
		return Process{}, err
	}
	return Process{
		Name: builder.Etcd, Version: builder.EtcdVersion, URL: url,
		Argv:  append(argv, c.opts.ExtraArgs[builder.Etcd]...),
		Ready: healthy(httpClient, url+"/health"),
	}, nil
}

// EtcdClientFiles returns what a client of etcd needs: its URL and the files of
// the authority, the client certificate and its key.
func (c *Cluster) EtcdClientFiles() (url, ca, cert, key string) {
	return "https://" + address(c.ports.etcd), c.file("ca.crt"), c.file(certEtcdClient + ".crt"), c.file(certEtcdClient + ".key")
}

// clientWith returns an HTTP client that shows one of our certificates.
func (c *Cluster) clientWith(cert string) (*http.Client, error) {
	httpClient, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
		CAFile: c.file("ca.crt"), CertFile: c.file(cert + ".crt"), KeyFile: c.file(cert + ".key"),
	}})
	if err != nil {
		return nil, fmt.Errorf("making an HTTP client with certificate %s: %w", cert, err)
	}
	return httpClient, nil
}

// apiServer asks one member of etcd. Its list of them adds up over flags, so there is one flag only: with a second member that has left, the API server needs
// 20 s, the limit for a connection to etcd, for every page of metrics, which tell the size of each member.
func (c *Cluster) apiServer(etcd string) Process {
	argv := []string{
		c.assets[builder.APIServer],
		"--etcd-servers=" + etcd, "--etcd-cafile=" + c.file("ca.crt"),
		"--etcd-certfile=" + c.file(certEtcdClient+".crt"), "--etcd-keyfile=" + c.file(certEtcdClient+".key"),
		fmt.Sprintf("--secure-port=%d", c.ports.apiServer),
		"--tls-cert-file=" + c.file(certAPIServer+".crt"), "--tls-private-key-file=" + c.file(certAPIServer+".key"),
		"--client-ca-file=" + c.file("ca.crt"),
		"--kubelet-client-certificate=" + c.file(certKubeletClient+".crt"), "--kubelet-client-key=" + c.file(certKubeletClient+".key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.file("sa.pub"), "--service-account-signing-key-file=" + c.file("sa.key"),
		"--service-cluster-ip-range=" + c.opts.ServiceCIDR,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--proxy-client-cert-file=" + c.file(frontProxy+".crt"), "--proxy-client-key-file=" + c.file(frontProxy+".key"),
		"--requestheader-client-ca-file=" + c.file(frontProxy+"-ca.crt"), "--requestheader-allowed-names=" + frontProxy,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		// Joining nodes bring bootstrap tokens when this stands in for a workload cluster.
		"--enable-bootstrap-token-auth=true",
		// Who asks is on the same machine, and has as little of its processors to spare.
		"--feature-gates=APIResponseCompression=false",
		"--profiling=false",
	}
	if c.opts.Hosts > 0 {
		argv = append(argv,
			// The namespace is private: everything in it may know the API server.
			"--bind-address=0.0.0.0", "--advertise-address="+labnet.Gateway,
			"--kubelet-certificate-authority="+c.file("ca.crt"),
		)
	} else {
		argv = append(argv,
			"--bind-address="+loopback, "--advertise-address="+loopback,
			// Would taint every new Node until the node lifecycle controller, which
			// does not run here, takes the taint off again.
			"--disable-admission-plugins=TaintNodesByCondition",
			// Loopback is no valid endpoint of the Service kubernetes.
			"--endpoint-reconciler-type=none",
		)
	}
	return Process{
		Name: builder.APIServer, Version: builder.KubernetesVersion, URL: c.URL(),
		Argv: append(argv, c.opts.ExtraArgs[builder.APIServer]...),
		// verbose names the checks that are not fine yet, for the error.
		Ready: healthy(c.probe, c.URL()+"/readyz?verbose"),
	}
}

// controllerManager runs all default controllers but one. RBAC is as strict as
// in a kubeadm cluster: each controller has its own service account.
func (c *Cluster) controllerManager() (Process, error) {
	config, err := c.writeKubeconfig(certControllerManager, "system:kube-controller-manager")
	if err != nil {
		return Process{}, err
	}
	url := "https://" + address(c.ports.controllerManager)
	argv := []string{
		c.assets[builder.ControllerManager],
		"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
		"--bind-address=" + loopback, fmt.Sprintf("--secure-port=%d", c.ports.controllerManager),
		"--tls-cert-file=" + c.file(certControllerManager+".crt"), "--tls-private-key-file=" + c.file(certControllerManager+".key"),
		"--client-ca-file=" + c.file("ca.crt"), "--root-ca-file=" + c.file("ca.crt"),
		"--cluster-signing-cert-file=" + c.file("ca.crt"), "--cluster-signing-key-file=" + c.file("ca.key"),
		"--service-account-private-key-file=" + c.file("sa.key"), "--use-service-account-credentials=true",
		"--service-cluster-ip-range=" + c.opts.ServiceCIDR,
		"--leader-elect=false",
		"--profiling=false",
	}
	if c.opts.Hosts == 0 {
		// Seeded hosts have no kubelet that renews their leases.
		argv = append(argv, "--controllers=*,-node-lifecycle-controller")
	}
	health := healthy(c.probe, url+"/healthz")
	return Process{
		Name: builder.ControllerManager, Version: builder.KubernetesVersion, URL: url,
		Argv: append(argv, c.opts.ExtraArgs[builder.ControllerManager]...),
		Ready: func(ctx context.Context) error {
			if err := health(ctx); err != nil {
				return err
			}
			// It is healthy before its controllers have synced. The default
			// service account is what pods need first.
			return c.exists(ctx, "v1", "ServiceAccount", "default", "default")
		},
	}, nil
}

func (c *Cluster) exists(ctx context.Context, apiVersion, kind, namespace, name string) error {
	obj := &unstructured.Unstructured{}
	obj.SetAPIVersion(apiVersion)
	obj.SetKind(kind)
	err := c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %s/%s does not exist yet", kind, namespace, name)
	}
	return err
}

func (c *Cluster) scheduler() (Process, error) {
	config, err := c.writeKubeconfig(certScheduler, "system:kube-scheduler")
	if err != nil {
		return Process{}, err
	}
	url := "https://" + address(c.ports.scheduler)
	argv := []string{
		c.assets[builder.Scheduler],
		"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
		"--bind-address=" + loopback, fmt.Sprintf("--secure-port=%d", c.ports.scheduler),
		"--tls-cert-file=" + c.file(certScheduler+".crt"), "--tls-private-key-file=" + c.file(certScheduler+".key"),
		"--client-ca-file=" + c.file("ca.crt"),
		"--leader-elect=false",
		"--profiling=false",
	}
	return Process{
		Name: builder.Scheduler, Version: builder.KubernetesVersion, URL: url,
		Argv:  append(argv, c.opts.ExtraArgs[builder.Scheduler]...),
		Ready: healthy(c.probe, url+"/readyz"),
	}, nil
}
