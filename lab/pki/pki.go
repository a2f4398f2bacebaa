package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// A lab lives for hours. The generous validity is for tests that move their
// clock through a maintenance window.
const (
	validBefore = 24 * time.Hour
	validAfter  = 10 * 365 * 24 * time.Hour
)

// Authority is a certificate authority.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
	kpem []byte
	now  time.Time
}

// Pair is a certificate with its private key, both PEM.
type Pair struct {
	Cert, Key []byte
}

// Names are what a certificate says about its holder.
type Names struct {
	// CommonName is the user name when the certificate is used by a client.
	CommonName string
	// Organizations are the groups of that user.
	Organizations []string
	// DNS and IPs are where a server with this certificate is reached. A
	// certificate without any is for clients only.
	DNS []string
	IPs []net.IP
}

// NewAuthority makes a self-signed authority.
func NewAuthority(name string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of %s: %w", name, err)
	}
	tmpl := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-validBefore),
		NotAfter:              now.Add(validAfter),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", name, err)
	}
	kpem, err := encodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding the key of %s: %w", name, err)
	}
	return LoadAuthority(encodeCert(der), kpem, now)
}

// LoadAuthority reads an authority from PEM, with an RSA or ECDSA key in
// PKCS#1, SEC 1 or PKCS#8 form.
func LoadAuthority(cert, key []byte, now time.Time) (*Authority, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("reading a certificate authority: %w", err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("reading a certificate authority: its key cannot sign")
	}
	if !pair.Leaf.IsCA {
		return nil, fmt.Errorf("reading a certificate authority: %q is no authority", pair.Leaf.Subject.CommonName)
	}
	return &Authority{cert: pair.Leaf, key: signer, pem: cert, kpem: key, now: now}, nil
}

// Pair returns the authority's own certificate and key.
func (a *Authority) Pair() Pair { return Pair{Cert: a.pem, Key: a.kpem} }

// CertPEM returns the authority's certificate, the thing clients trust.
func (a *Authority) CertPEM() []byte { return a.pem }

// Issue signs a new certificate.
func (a *Authority) Issue(names Names) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("making the key of %s: %w", names.CommonName, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return Pair{}, fmt.Errorf("choosing a serial number for %s: %w", names.CommonName, err)
	}
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(names.DNS)+len(names.IPs) > 0 {
		usages = append(usages, x509.ExtKeyUsageServerAuth)
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: names.CommonName, Organization: names.Organizations},
		NotBefore:    a.now.Add(-validBefore),
		NotAfter:     a.now.Add(validAfter),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  usages,
		DNSNames:     names.DNS,
		IPAddresses:  names.IPs,
	}
	// A loaded authority may have lived before the lab's day, or end earlier.
	if tmpl.NotBefore.Before(a.cert.NotBefore) {
		tmpl.NotBefore = a.cert.NotBefore
	}
	if tmpl.NotAfter.After(a.cert.NotAfter) {
		tmpl.NotAfter = a.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("signing the certificate of %s: %w", names.CommonName, err)
	}
	kpem, err := encodeKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encoding the key of %s: %w", names.CommonName, err)
	}
	return Pair{Cert: encodeCert(der), Key: kpem}, nil
}

// SigningKey makes a key pair for service-account tokens: the private key and
// the public key, both PEM.
func SigningKey() (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making the service-account key: %w", err)
	}
	private, err = encodeKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the service-account key: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the public service-account key: %w", err)
	}
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// Write stores the pair as <dir>/<name>.crt and <dir>/<name>.key.
func (p Pair) Write(dir, name string) error {
	for suffix, content := range map[string][]byte{".crt": p.Cert, ".key": p.Key} {
		if err := os.WriteFile(filepath.Join(dir, name+suffix), content, 0o600); err != nil {
			return fmt.Errorf("writing certificate %s: %w", name, err)
		}
	}
	return nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// encodeKey uses SEC 1: kube-controller-manager and etcd read every form, but
// older components of a legacy cluster do not know ECDSA in PKCS#8.
func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
