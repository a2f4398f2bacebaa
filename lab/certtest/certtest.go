package certtest

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// EndAt signs a PEM certificate again, for the same key and with another end.
func EndAt(ends time.Time, cert, caCert, caKey []byte) ([]byte, error) {
	authority, err := tls.X509KeyPair(bytes.TrimSpace(caCert), caKey)
	if err != nil {
		return nil, fmt.Errorf("reading the CA: %w", err)
	}
	block, _ := pem.Decode(cert)
	if block == nil {
		return nil, errors.New("reading the certificate to end: it is no PEM")
	}
	old, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate to end: %w", err)
	}
	template := *old
	// That of the authority's key.
	template.SignatureAlgorithm = x509.UnknownSignatureAlgorithm
	template.NotAfter = ends
	der, err := x509.CreateCertificate(rand.Reader, &template, authority.Leaf, old.PublicKey, authority.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate that ends: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
