package mc

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

// Sibling is a second control plane machine of a cluster: an etcd that joins its
// etcd and an API server on the same data, at an address of their own and at
// the ports that Kubernetes' own machines have. Run starts each.
type Sibling struct {
	// Name is the machine's, and that of its member of etcd.
	Name string
	// Address is where both listen.
	Address net.IP
	// Names are those that the API server answers under.
	Names []string

	cluster *Cluster
	dir     string
}

// NewSibling prepares files for a second control plane machine. It listens at the
// first of its addresses; connections to other members may come from all of them.
func (c *Cluster) NewSibling(name string, addresses []net.IP, names ...string) (*Sibling, error) {
	s := &Sibling{Name: name, Address: addresses[0], Names: names, cluster: c, dir: filepath.Join(c.dir, "sibling-"+name)}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making a directory for %s: %w", name, err)
	}
	ips := append([]net.IP{net.ParseIP(loopback)}, addresses...)
	serving := ips
	if ip := firstServiceIP(c.opts.ServiceCIDR); ip != nil {
		serving = append(slices.Clone(ips), ip)
	}
	for file, about := range map[string]pki.Names{
		certEtcd: {CommonName: name, DNS: []string{"localhost", name}, IPs: ips},
		// kubeadm puts the machine's own name in as well, and the first address of Services (kubernetes, cmd/kubeadm/app/util/pkiutil/pki_helpers.go, GetAPIServerAltNames).
		certAPIServer: {CommonName: "kube-apiserver", DNS: append([]string{"localhost", "kubernetes.default.svc", name}, names...), IPs: serving},
	} {
		pair, err := c.ca.Issue(about)
		if err != nil {
			return nil, fmt.Errorf("issuing %s for %s: %w", file, name, err)
		}
		if err := pair.Write(s.dir, file); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Peer is the address at which other members of etcd reach this one.
func (s *Sibling) Peer() string { return s.at("2380") }

func (s *Sibling) at(port string) string {
	return "https://" + net.JoinHostPort(s.Address.String(), port)
}

func (s *Sibling) file(name string) string { return filepath.Join(s.dir, name) }

// Etcd describes the member; members are all of them, as name=peer. It counts as
// ready when it runs: a learner says little about itself.
func (s *Sibling) Etcd(members []string) (Process, error) {
	p, err := s.cluster.etcd()
	if err != nil {
		return Process{}, err
	}
	p.Name, p.URL, p.Ready = builder.Etcd+"-"+s.Name, s.at("2379"), nil
	p.Argv = append(p.Argv,
		"--name="+s.Name, "--data-dir="+s.file("data"), "--initial-cluster="+strings.Join(members, ","), "--initial-cluster-state=existing",
		"--listen-client-urls="+p.URL, "--advertise-client-urls="+p.URL, "--listen-peer-urls="+s.Peer(), "--initial-advertise-peer-urls="+s.Peer(),
		"--cert-file="+s.file(certEtcd+".crt"), "--key-file="+s.file(certEtcd+".key"),
		"--peer-cert-file="+s.file(certEtcd+".crt"), "--peer-key-file="+s.file(certEtcd+".key"),
	)
	return p, nil
}

// APIServer describes the API server, which asks the machine's own etcd, and shows kubelets a certificate, also where the cluster's other one does not.
func (s *Sibling) APIServer() (Process, error) {
	httpClient, err := s.cluster.clientWith(certEtcdClient)
	if err != nil {
		return Process{}, err
	}
	p := s.cluster.apiServer(s.at("2379"))
	p.Name, p.URL = builder.APIServer+"-"+s.Name, s.at("443")
	p.Argv = append(p.Argv,
		"--bind-address="+s.Address.String(), "--secure-port=443",
		"--tls-cert-file="+s.file(certAPIServer+".crt"), "--tls-private-key-file="+s.file(certAPIServer+".key"), "--audit-log-path="+s.file("audit.log"),
		"--kubelet-client-certificate="+s.cluster.file(certKubeletClient+".crt"), "--kubelet-client-key="+s.cluster.file(certKubeletClient+".key"),
	)
	p.Ready = healthy(httpClient, p.URL+"/readyz?verbose")
	return p, nil
}
