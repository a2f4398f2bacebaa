package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
)

// redacted is what a secret prints as.
const redacted = "[redacted]"

// PrivateKey is a private key that cannot be printed. The zero value holds no key.
type PrivateKey struct {
	// open is a function and not the key, because fmt, encoders and the diff of a test library all walk fields by reflection.
	open func() crypto.Signer
}

func newPrivateKey(signer crypto.Signer) PrivateKey {
	return PrivateKey{open: func() crypto.Signer { return signer }}
}

// Signer returns the key for signing; nil when there is none.
func (k PrivateKey) Signer() crypto.Signer {
	if k.open == nil {
		return nil
	}
	return k.open()
}

// PEM encodes the key the way kubeadm reads it: RSA as PKCS#1, elliptic curves as SEC 1, everything else as PKCS#8.
// The caller holds key material from here on.
func (k PrivateKey) PEM() ([]byte, error) {
	switch key := k.Signer().(type) {
	case nil:
		return nil, errors.New("encoding a private key: there is none")
	case *rsa.PrivateKey:
		return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), nil
	case *ecdsa.PrivateKey:
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return nil, errors.New("encoding a private key: the curve is not supported")
		}
		return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
	default:
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, errors.New("encoding a private key: its kind is not supported")
		}
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
	}
}

// Fits tells whether the key is the other half of the certificate's public key.
func (k PrivateKey) Fits(certificate *x509.Certificate) bool {
	signer := k.Signer()
	if signer == nil || certificate == nil {
		return false
	}
	public, ok := signer.Public().(interface {
		Equal(other crypto.PublicKey) bool
	})
	return ok && public.Equal(certificate.PublicKey)
}

// String returns "[redacted]".
func (PrivateKey) String() string { return redacted }

// GoString returns "[redacted]".
func (PrivateKey) GoString() string { return redacted }

// Format writes "[redacted]" for every verb.
func (PrivateKey) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, redacted) }

// MarshalJSON returns "[redacted]".
func (PrivateKey) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText returns "[redacted]".
func (PrivateKey) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Token is a credential that cannot be printed. The zero value is empty.
type Token struct {
	open func() string
}

// NewToken wraps a credential, for example the value of VAULT_TOKEN.
func NewToken(value string) Token { return Token{open: func() string { return value }} }

func (t Token) value() string {
	if t.open == nil {
		return ""
	}
	return t.open()
}

// Empty tells whether there is no credential.
func (t Token) Empty() bool { return t.value() == "" }

// String returns "[redacted]".
func (Token) String() string { return redacted }

// GoString returns "[redacted]".
func (Token) GoString() string { return redacted }

// Format writes "[redacted]" for every verb.
func (Token) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, redacted) }

// MarshalJSON returns "[redacted]".
func (Token) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText returns "[redacted]".
func (Token) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// ParsePrivateKey reads the first private key of a PEM text: PKCS#1, SEC 1 or PKCS#8. Blocks of other kinds are passed over.
// Its errors never repeat the input.
func ParsePrivateKey(text []byte) (PrivateKey, error) {
	if len(text) > maxPEM {
		return PrivateKey{}, fmt.Errorf("parsing a private key: %w", ErrTooLong)
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		// Both ways of encrypting a PEM key: the old header and the PKCS#8 container.
		if block.Headers["DEK-Info"] != "" || block.Type == "ENCRYPTED PRIVATE KEY" {
			return PrivateKey{}, fmt.Errorf("parsing a private key: %w", ErrEncrypted)
		}
		var key any
		var err error
		switch block.Type {
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		default:
			continue
		}
		if err != nil {
			// The reason may describe the bytes; the kind of the block is enough to find the mistake.
			return PrivateKey{}, fmt.Errorf("parsing a private key: the block %q does not hold one", block.Type)
		}
		switch signer := key.(type) {
		case *rsa.PrivateKey:
			return newPrivateKey(signer), nil
		case *ecdsa.PrivateKey:
			return newPrivateKey(signer), nil
		case ed25519.PrivateKey:
			return newPrivateKey(signer), nil
		default:
			return PrivateKey{}, errors.New("parsing a private key: it cannot sign")
		}
	}
	return PrivateKey{}, fmt.Errorf("parsing a private key: %w", ErrNoKey)
}
