package userdata

import (
	"fmt"
	"net"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

// Issue makes the certificates of a cluster's machines as the legacy platform does: one authority signs everything. Service is the first
// address of the service network.
func Issue(ca *pki.Authority, id, zone string, service net.IP) (map[string]Certificate, error) {
	kubernetes := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	names := map[string]pki.Names{
		API: {
			CommonName: "api." + zone, Organizations: []string{API, "system:masters"},
			DNS: append([]string{"api." + zone, "internal-api." + zone, "master." + id}, kubernetes...), IPs: []net.IP{service},
		},
		Calico: {CommonName: "calico." + zone, Organizations: []string{Calico}},
		Etcd: {
			CommonName: "etcd." + zone, Organizations: []string{Etcd}, DNS: []string{"etcd." + zone}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
		},
		ServiceAccount: {CommonName: "service-account." + zone, Organizations: []string{ServiceAccount}},
		Worker: {
			CommonName: "worker." + zone, Organizations: []string{Worker}, DNS: append([]string{"worker." + zone}, kubernetes...),
		},
	}
	certificates := map[string]Certificate{}
	for name, n := range names {
		pair, err := ca.Issue(n)
		if err != nil {
			return nil, fmt.Errorf("issuing the certificate %s of %s: %w", name, id, err)
		}
		certificates[name] = Certificate{CA: ca.CertPEM(), Cert: pair.Cert, Key: pair.Key}
	}
	return certificates, nil
}
