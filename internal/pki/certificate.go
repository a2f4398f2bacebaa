package pki

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// maxPEM bounds what is parsed: a certificate chain with its key has a few kilobytes, a file of megabytes is the wrong file.
const maxPEM = 1 << 20

var (
	// ErrNoCertificate means that a text holds no certificate.
	ErrNoCertificate = errors.New("no certificate in PEM form")
	// ErrNoKey means that a text holds no private key.
	ErrNoKey = errors.New("no private key in PEM form")
	// ErrEncrypted means that a private key is protected by a passphrase.
	ErrEncrypted = errors.New("the private key is encrypted; decrypt it first, for example with openssl pkey")
	// ErrTooLong means that a text is far longer than any key pair.
	ErrTooLong = errors.New("the text is longer than any key pair")
	// ErrKeyMismatch means that a private key belongs to another certificate.
	ErrKeyMismatch = errors.New("the private key does not belong to the certificate")
	// ErrNotAuthority means that a certificate may not sign others.
	ErrNotAuthority = errors.New("the certificate may not sign other certificates")
	// ErrNotSigned means that a certificate was signed by somebody else.
	ErrNotSigned = errors.New("the certificate was not signed by this authority")
	// ErrExpired means that a certificate is past its time.
	ErrExpired = errors.New("the certificate has expired")
	// ErrNotYetValid means that a certificate's time has not come.
	ErrNotYetValid = errors.New("the certificate is not valid yet")
)

// ParseCertificates reads every certificate of a PEM text, in order; texts with or without a trailing newline, with a chain, or with
// a key between them are fine.
func ParseCertificates(text []byte) ([]*x509.Certificate, error) {
	if len(text) > maxPEM {
		return nil, fmt.Errorf("parsing certificates: %w", ErrTooLong)
	}
	var found []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parsing certificate %d: %w", len(found)+1, err)
		}
		found = append(found, certificate)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("parsing certificates: %w", ErrNoCertificate)
	}
	return found, nil
}

// Leaf is a live certificate with what a report may say about it. It holds no key.
type Leaf struct {
	// Name is the component, for example api.
	Name        string
	Certificate *x509.Certificate
	// Chain are the certificates that came after it in the same text.
	Chain []*x509.Certificate
	// Authority is the first certificate of the CA text beside it; nil when there was none.
	Authority *x509.Certificate
	// KeyFits tells that the private key beside it is its own.
	KeyFits bool
	Facts   Facts
}

// Facts are the public facts of a certificate.
type Facts struct {
	Subject      string    `json:"subject"`
	Organization []string  `json:"organization,omitempty"`
	Issuer       string    `json:"issuer"`
	Names        []string  `json:"names,omitempty"`
	Addresses    []string  `json:"addresses,omitempty"`
	NotBefore    time.Time `json:"notBefore"`
	NotAfter     time.Time `json:"notAfter"`
	// Fingerprint is the SHA-256 of the certificate.
	Fingerprint string `json:"fingerprint"`
}

// Describe returns the public facts of a certificate.
func Describe(certificate *x509.Certificate) Facts {
	facts := Facts{
		Subject:      certificate.Subject.CommonName,
		Organization: slices.Sorted(slices.Values(certificate.Subject.Organization)),
		Issuer:       certificate.Issuer.CommonName,
		Names:        slices.Sorted(slices.Values(certificate.DNSNames)),
		NotBefore:    certificate.NotBefore.UTC(),
		NotAfter:     certificate.NotAfter.UTC(),
		Fingerprint:  Fingerprint(certificate),
	}
	for _, address := range certificate.IPAddresses {
		facts.Addresses = append(facts.Addresses, address.String())
	}
	slices.Sort(facts.Addresses)
	return facts
}

// Fingerprint returns the SHA-256 of a certificate, in hexadecimal.
func Fingerprint(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	return hex.EncodeToString(sum[:])
}

// ParseLeaf reads one live certificate, its key and the CA beside it. The key is looked at only to see whether it fits; an empty key
// or CA text is no error.
func ParseLeaf(name string, certificate, key, authority []byte) (Leaf, error) {
	chain, err := ParseCertificates(certificate)
	if err != nil {
		return Leaf{}, fmt.Errorf("reading certificate %s: %w", name, err)
	}
	leaf := Leaf{Name: name, Certificate: chain[0], Chain: chain[1:], Facts: Describe(chain[0])}
	if len(bytes.TrimSpace(key)) > 0 {
		private, err := ParsePrivateKey(key)
		if err != nil {
			return Leaf{}, fmt.Errorf("reading the key of certificate %s: %w", name, err)
		}
		leaf.KeyFits = private.Fits(leaf.Certificate)
	}
	if len(bytes.TrimSpace(authority)) > 0 {
		authorities, err := ParseCertificates(authority)
		if err != nil {
			return Leaf{}, fmt.Errorf("reading the CA of certificate %s: %w", name, err)
		}
		leaf.Authority = authorities[0]
	}
	return leaf, nil
}

// Covers tells whether the certificate is valid for a DNS name or an IP address. The common name counts too when it has no DNS name:
// components this old still accept that.
func (l Leaf) Covers(name string) bool {
	if address := net.ParseIP(name); address != nil {
		return slices.ContainsFunc(l.Certificate.IPAddresses, address.Equal)
	}
	if len(l.Certificate.DNSNames) == 0 {
		return strings.EqualFold(l.Certificate.Subject.CommonName, name)
	}
	return slices.ContainsFunc(l.Certificate.DNSNames, func(have string) bool { return strings.EqualFold(have, name) })
}

// Valid tells whether the time lies inside the certificate's validity.
func Valid(certificate *x509.Certificate, at time.Time) error {
	switch {
	case at.Before(certificate.NotBefore):
		return ErrNotYetValid
	case at.After(certificate.NotAfter):
		return ErrExpired
	default:
		return nil
	}
}

// SignedBy tells whether issuer signed the certificate, by key identifiers where both have them and by the signature itself.
// Time plays no part: expiry is another question.
func SignedBy(certificate, issuer *x509.Certificate) bool {
	if len(certificate.AuthorityKeyId) > 0 && len(issuer.SubjectKeyId) > 0 && !bytes.Equal(certificate.AuthorityKeyId, issuer.SubjectKeyId) {
		return false
	}
	return bytes.Equal(certificate.RawIssuer, issuer.RawSubject) && certificate.CheckSignatureFrom(issuer) == nil
}

// SortLeafs orders leafs by name.
func SortLeafs(leafs []Leaf) {
	slices.SortFunc(leafs, func(a, b Leaf) int { return cmp.Compare(a.Name, b.Name) })
}
