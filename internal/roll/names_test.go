package roll

import (
	"crypto/x509"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/client-go/rest"
)

// TestNamesThatOnlyTheOldCertificateIsGoodFor: a kubectl that asks by the old name, or a pod by the Service's address, would be refused the moment the new one answers there.
func TestNamesThatOnlyTheOldCertificateIsGoodFor(t *testing.T) {
	t.Parallel()
	old := &x509.Certificate{DNSNames: []string{"api.al9qy.example.test", "master-1", apiServiceName}, IPAddresses: []net.IP{net.IPv4(172, 31, 0, 1), net.IPv4(127, 0, 0, 1)}}
	needed := []string{"api.al9qy.example.test", apiServiceName, "172.31.0.1", "never.example.test", ""}
	for name, test := range map[string]struct {
		fresh          x509.Certificate
		refused, noted []string
	}{
		"the same":     {*old, nil, nil},
		"nothing":      {x509.Certificate{DNSNames: []string{"al9qy-x7k2p"}}, []string{"api.al9qy.example.test", apiServiceName, "172.31.0.1"}, []string{"127.0.0.1", "master-1"}},
		"no addresses": {x509.Certificate{DNSNames: old.DNSNames}, []string{"172.31.0.1"}, []string{"127.0.0.1"}},
		"a wildcard":   {x509.Certificate{DNSNames: []string{"*.al9qy.example.test", apiServiceName, "master-1"}, IPAddresses: old.IPAddresses}, nil, nil},
	} {
		refused, noted := uncovered(old, &test.fresh, needed)
		assert.Equal(t, test.refused, refused, name)
		assert.Equal(t, test.noted, noted, name)
	}
	assert.Equal(t, "api.al9qy.example.test", hostOf(&rest.Config{Host: "https://api.al9qy.example.test:443"}))
	assert.Equal(t, "api.al9qy.example.test", hostOf(&rest.Config{Host: "https://192.0.2.7:8443", TLSClientConfig: rest.TLSClientConfig{ServerName: "api.al9qy.example.test"}}))
	assert.Equal(t, "api.al9qy.example.test", hostOf(&rest.Config{Host: "api.al9qy.example.test"}))
}
