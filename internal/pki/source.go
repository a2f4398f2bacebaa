package pki

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Source is a place a CA key pair can be read from.
type Source interface {
	// Load reads and parses the pair. It does not judge it.
	Load(ctx context.Context) (*Authority, error)
	// String says where, for reports; it holds no credential.
	String() string
}

var (
	_ Source = Files{}
	_ Source = Secret{}
	_ Source = Vault{}
)

// Files reads the pair from two files; both may be the same file.
type Files struct {
	Certificate, Key string
}

// String names the files.
func (f Files) String() string { return "files " + f.Certificate + " and " + f.Key }

// Load reads both files.
func (f Files) Load(context.Context) (*Authority, error) {
	if f.Certificate == "" || f.Key == "" {
		return nil, errors.New("reading the CA: both a certificate file and a key file are needed")
	}
	certificate, err := readFile(f.Certificate)
	if err != nil {
		return nil, fmt.Errorf("reading the CA certificate: %w", err)
	}
	key, err := readFile(f.Key)
	if err != nil {
		return nil, fmt.Errorf("reading the CA key: %w", err)
	}
	return ParseAuthority(f.String(), certificate, key)
}

// readFile reads at most one byte more than a PEM text may have: a device or a huge file must not fill the memory.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, maxPEM+1))
}

// pairKeys are the data keys a Secret may use, in the order they are looked for: a TLS secret, kubeadm's file names, cert-operator's.
func pairKeys() [][2]string {
	return [][2]string{{"tls.crt", "tls.key"}, {"ca.crt", "ca.key"}, {"crt", "key"}}
}

// Secret reads the pair from a Kubernetes Secret with data keys tls.crt and tls.key, ca.crt and ca.key, or crt and key.
type Secret struct {
	Reader          client.Reader
	Namespace, Name string
}

// String names the Secret.
func (s Secret) String() string { return "Secret/" + s.Namespace + "/" + s.Name }

// Load reads the Secret.
func (s Secret) Load(ctx context.Context) (*Authority, error) {
	var secret corev1.Secret
	if err := s.Reader.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Name}, &secret); err != nil {
		return nil, fmt.Errorf("reading %s: %w", s, err)
	}
	for _, keys := range pairKeys() {
		certificate, key := secret.Data[keys[0]], secret.Data[keys[1]]
		if len(certificate) > 0 && len(key) > 0 {
			return ParseAuthority(s.String(), certificate, key)
		}
	}
	return nil, fmt.Errorf("reading %s: it has none of the key pairs tls.crt and tls.key, ca.crt and ca.key, crt and key", s)
}
