package pki

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// Authority is a certificate authority with its private key. It says nothing about being the right one: that is what its methods
// and Verify are for.
type Authority struct {
	// Certificate is the one that signs.
	Certificate *x509.Certificate
	// Chain are the certificates above it, in the order of the text.
	Chain []*x509.Certificate
	// Key signs, and prints as "[redacted]".
	Key PrivateKey
	// Origin says where the pair came from, for reports.
	Origin string
}

// ParseAuthority reads a CA from two PEM texts; both may be the same text. It fails when one of them does not parse, not when they
// do not belong together.
func ParseAuthority(origin string, certificate, key []byte) (*Authority, error) {
	chain, err := ParseCertificates(certificate)
	if err != nil {
		return nil, fmt.Errorf("reading the CA certificate from %s: %w", origin, err)
	}
	private, err := ParsePrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("reading the CA key from %s: %w", origin, err)
	}
	authority := &Authority{Certificate: chain[0], Chain: chain[1:], Key: private, Origin: origin}
	// A bundle may name the root first; the certificate the key belongs to is the one that signs.
	for n, candidate := range chain {
		if private.Fits(candidate) {
			authority.Certificate = candidate
			authority.Chain = append(append([]*x509.Certificate(nil), chain[:n]...), chain[n+1:]...)
			break
		}
	}
	return authority, nil
}

// Matches tells whether the key belongs to the certificate.
func (a *Authority) Matches() error {
	if !a.Key.Fits(a.Certificate) {
		return ErrKeyMismatch
	}
	return nil
}

// MaySign tells whether the certificate is that of an authority.
func (a *Authority) MaySign() error {
	if !a.Certificate.BasicConstraintsValid || !a.Certificate.IsCA {
		return ErrNotAuthority
	}
	if usage := a.Certificate.KeyUsage; usage != 0 && usage&x509.KeyUsageCertSign == 0 {
		return ErrNotAuthority
	}
	return nil
}

// Signed tells whether this authority signed the leaf: by key identifier, and by verifying the chain at the given time.
// A leaf that is expired at that time fails with ErrExpired or ErrNotYetValid, whoever signed it; ErrNotSigned means another issuer.
func (a *Authority) Signed(leaf Leaf, at time.Time) error {
	if !SignedBy(leaf.Certificate, a.Certificate) && len(leaf.Chain) == 0 {
		return ErrNotSigned
	}
	if err := Valid(leaf.Certificate, at); err != nil {
		return err
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(a.Certificate)
	for _, certificate := range leaf.Chain {
		between.AddCert(certificate)
	}
	_, err := leaf.Certificate.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	var invalid x509.CertificateInvalidError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("verifying the chain: %w", ErrExpired)
	default:
		return ErrNotSigned
	}
}

// Verify asks everything at once: the key fits, the certificate may sign and is valid, and it signed every leaf. All answers are
// in the error, joined, each naming its certificate.
func (a *Authority) Verify(at time.Time, leafs ...Leaf) error {
	var problems []error
	for _, err := range []error{a.Matches(), a.MaySign(), Valid(a.Certificate, at)} {
		if err != nil {
			problems = append(problems, fmt.Errorf("checking the CA: %w", err))
		}
	}
	for _, leaf := range leafs {
		if err := a.Signed(leaf, at); err != nil {
			problems = append(problems, fmt.Errorf("checking certificate %s: %w", leaf.Name, err))
		}
	}
	return errors.Join(problems...)
}

// CertificatePEM encodes the signing certificate.
func (a *Authority) CertificatePEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate.Raw})
}

// String names the authority without its key.
func (a *Authority) String() string {
	if a == nil || a.Certificate == nil {
		return "no CA"
	}
	return fmt.Sprintf("CA %s, sha256 %.16s…, from %s", a.Certificate.Subject.CommonName, Fingerprint(a.Certificate), a.Origin)
}

// MarshalJSON writes the public facts and the origin.
func (a *Authority) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Origin string `json:"origin"`
		Facts
	}{a.Origin, Describe(a.Certificate)})
}
