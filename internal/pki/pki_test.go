package pki

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// issued is a certificate with its key.
type issued struct {
	certificate *x509.Certificate
	key         crypto.Signer
	certPEM     []byte
	keyPEM      []byte
}

// issue makes a certificate; a nil parent means self-signed.
func issue(parent *issued, name string, authority bool, until time.Time) *issued {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: now.AddDate(-1, 0, 0), NotAfter: until,
		BasicConstraintsValid: authority, IsCA: authority, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if authority {
		template.KeyUsage = x509.KeyUsageCertSign
	}
	signer, above := crypto.Signer(key), template
	if parent != nil {
		signer, above = parent.key, parent.certificate
	}
	der := must(x509.CreateCertificate(rand.Reader, template, above, key.Public(), signer))
	return &issued{
		certificate: must(x509.ParseCertificate(der)), key: key, certPEM: encode("CERTIFICATE", der),
		keyPEM: encode("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(key))),
	}
}

func (i *issued) authority() *Authority { return must(ParseAuthority("test", i.certPEM, i.keyPEM)) }

func (i *issued) leaf() Leaf { return must(ParseLeaf("leaf", i.certPEM, i.keyPEM, nil)) }

func TestParsePrivateKeyForms(t *testing.T) {
	t.Parallel()
	small := must(rsa.GenerateKey(rand.Reader, 2048))
	curve := must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	for name, text := range map[string][]byte{
		"PKCS#1":              encode("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(small)),
		"PKCS#1, no newline":  bytes.TrimSpace(encode("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(small))),
		"PKCS#8":              encode("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(small))),
		"PKCS#8, curve":       encode("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(curve))),
		"Ed25519":             encode("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(edwards))),
		"curve, parameters":   append(encode("EC PARAMETERS", []byte{6, 5, 43, 129, 4, 0, 34}), encode("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(curve)))...),
		"after a certificate": append(issue(nil, "ca", true, now.AddDate(1, 0, 0)).certPEM, encode("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(curve)))...),
		"carriage returns":    bytes.ReplaceAll(encode("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(small))), []byte("\n"), []byte("\r\n")),
	} {
		key, err := ParsePrivateKey(text)
		require.NoError(t, err, name)
		encoded, err := key.PEM()
		require.NoError(t, err, name)
		again, err := ParsePrivateKey(encoded)
		require.NoError(t, err, name)
		assert.Equal(t, key.Signer().Public(), again.Signer().Public(), name)
	}
}

func TestHostilePEM(t *testing.T) {
	t.Parallel()
	good := issue(nil, "ca", true, now.AddDate(1, 0, 0))
	for name, test := range map[string]struct {
		text []byte
		want error
	}{
		"empty":              {nil, ErrNoKey},
		"garbage":            {[]byte("garbage"), ErrNoKey},
		"certificate only":   {good.certPEM, ErrNoKey},
		"encrypted header":   {pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-256-CBC,00"}, Bytes: []byte("x")}), ErrEncrypted},
		"encrypted PKCS#8":   {encode("ENCRYPTED PRIVATE KEY", []byte("x")), ErrEncrypted},
		"empty block":        {encode("PRIVATE KEY", nil), nil},
		"wrong kind":         {encode("RSA PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(good.key))), nil},
		"never ending":       {bytes.Repeat([]byte("-----BEGIN PRIVATE KEY-----\n"), 30000), nil},
		"too long":           {bytes.Repeat([]byte("a"), maxPEM+1), ErrTooLong},
		"truncated":          {good.keyPEM[:len(good.keyPEM)/2], ErrNoKey},
		"secret in an error": {encode("PRIVATE KEY", []byte("PLANTED-KEY-BYTES")), nil},
	} {
		_, err := ParsePrivateKey(test.text)
		require.Error(t, err, name)
		if test.want != nil {
			require.ErrorIs(t, err, test.want, name)
		}
		assert.NotContains(t, err.Error(), "PLANTED", name)
	}
	_, err := ParseCertificates(good.keyPEM)
	require.ErrorIs(t, err, ErrNoCertificate)
	_, err = ParseCertificates(encode("CERTIFICATE", []byte("x")))
	require.ErrorContains(t, err, "parsing certificate 1")
	_, err = ParseCertificates(bytes.Repeat([]byte("a"), maxPEM+1))
	require.ErrorIs(t, err, ErrTooLong)
}

func TestSecretsDoNotPrint(t *testing.T) {
	t.Parallel()
	authority := issue(nil, "ca", true, now.AddDate(1, 0, 0)).authority()
	number := authority.Key.Signer().(*ecdsa.PrivateKey).D //nolint:staticcheck // SA1019: the number itself must not show.
	token := NewToken("PLANTED-TOKEN")
	type holder struct {
		Public  PrivateKey
		private PrivateKey
		token   Token
	}
	all := holder{authority.Key, authority.Key, token}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p"} {
		for _, value := range []any{authority.Key, &authority.Key, all, &all, token, &token, []PrivateKey{authority.Key}, map[string]Token{"a": token}} {
			fmt.Fprintf(&out, verb+"\n", value)
		}
	}
	encoded, err := json.Marshal(map[string]any{"a": authority, "b": all, "c": token})
	require.NoError(t, err)
	out.Write(encoded)
	for _, secret := range []string{"PLANTED", number.String(), number.Text(16), strings.ToUpper(number.Text(16))} {
		assert.NotContains(t, out.String(), secret)
	}
	assert.Contains(t, string(encoded), redacted)
	assert.Contains(t, authority.String(), "CA ca")
	assert.NotContains(t, fmt.Sprint(Vault{Token: token, Path: "p/x"}), "PLANTED")
}

func TestAuthorityQuestions(t *testing.T) {
	t.Parallel()
	root, other := issue(nil, "ca", true, now.AddDate(10, 0, 0)), issue(nil, "ca", true, now.AddDate(10, 0, 0))
	leaf := issue(root, "api", false, now.AddDate(0, 6, 0))
	authority := root.authority()
	require.NoError(t, authority.Verify(now, leaf.leaf()))
	require.ErrorIs(t, other.authority().Verify(now, leaf.leaf()), ErrNotSigned, "same subject, other key")
	require.ErrorIs(t, authority.Signed(leaf.leaf(), now.AddDate(1, 0, 0)), ErrExpired)
	require.ErrorIs(t, authority.Signed(leaf.leaf(), now.AddDate(-2, 0, 0)), ErrNotYetValid)
	require.ErrorIs(t, leaf.authority().MaySign(), ErrNotAuthority)

	mixed := must(ParseAuthority("test", root.certPEM, other.keyPEM))
	require.ErrorIs(t, mixed.Matches(), ErrKeyMismatch)
	require.ErrorIs(t, mixed.Verify(now), ErrKeyMismatch)

	between := issue(root, "sub", true, now.AddDate(5, 0, 0))
	below := issue(between, "api", false, now.AddDate(0, 6, 0))
	require.ErrorIs(t, authority.Signed(below.leaf(), now), ErrNotSigned, "the intermediate is missing")
	chained := must(ParseLeaf("api", append(bytes.Clone(below.certPEM), between.certPEM...), below.keyPEM, nil))
	require.NoError(t, authority.Signed(chained, now))
	require.NoError(t, between.authority().Signed(below.leaf(), now), "an intermediate may be the authority itself")

	bundle := must(ParseAuthority("bundle", append(bytes.Clone(root.certPEM), between.certPEM...), between.keyPEM))
	assert.Equal(t, "sub", bundle.Certificate.Subject.CommonName, "the certificate the key belongs to")
	require.Len(t, bundle.Chain, 1)

	ended := issue(root, "api", false, now.AddDate(0, 0, -1))
	err := authority.Verify(now, ended.leaf(), leaf.leaf())
	require.ErrorIs(t, err, ErrExpired)
}

func TestLeaf(t *testing.T) {
	t.Parallel()
	root := issue(nil, "ca", true, now.AddDate(10, 0, 0))
	one := issue(root, "api.test", false, now.AddDate(0, 6, 0))
	leaf, err := ParseLeaf("api", bytes.TrimSpace(one.certPEM), bytes.TrimSpace(one.keyPEM), bytes.TrimSpace(root.certPEM))
	require.NoError(t, err)
	assert.True(t, leaf.KeyFits)
	assert.Equal(t, "ca", leaf.Authority.Subject.CommonName)
	assert.True(t, leaf.Covers("API.test"))
	assert.True(t, leaf.Covers("127.0.0.1"))
	assert.False(t, leaf.Covers("127.0.0.2"))
	assert.False(t, leaf.Covers("other.test"))
	assert.Equal(t, Facts{
		Subject: "api.test", Issuer: "ca", Names: []string{"api.test"}, Addresses: []string{"127.0.0.1"},
		NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(0, 6, 0), Fingerprint: Fingerprint(one.certificate),
	}, leaf.Facts)
	_, err = ParseLeaf("api", one.certPEM, []byte("x"), nil)
	require.ErrorContains(t, err, "reading the key of certificate api")
	_, err = ParseLeaf("api", one.certPEM, nil, []byte("x"))
	require.ErrorContains(t, err, "reading the CA of certificate api")
}

func TestFiles(t *testing.T) {
	t.Parallel()
	root := issue(nil, "ca", true, now.AddDate(10, 0, 0))
	dir := t.TempDir()
	certificate, key, both := filepath.Join(dir, "c"), filepath.Join(dir, "k"), filepath.Join(dir, "both")
	require.NoError(t, os.WriteFile(certificate, root.certPEM, 0o600))
	require.NoError(t, os.WriteFile(key, root.keyPEM, 0o600))
	require.NoError(t, os.WriteFile(both, append(bytes.Clone(root.certPEM), root.keyPEM...), 0o600))
	for _, source := range []Files{{certificate, key}, {both, both}} {
		got, err := source.Load(t.Context())
		require.NoError(t, err)
		require.NoError(t, got.Verify(now))
		assert.Equal(t, source.String(), got.Origin)
	}
	_, err := Files{certificate, filepath.Join(dir, "none")}.Load(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Files{Certificate: certificate}.Load(t.Context())
	require.ErrorContains(t, err, "both")
	_, err = Files{"/dev/zero", key}.Load(t.Context())
	require.ErrorIs(t, err, ErrTooLong)
}

func TestSecret(t *testing.T) {
	t.Parallel()
	root := issue(nil, "ca", true, now.AddDate(10, 0, 0))
	for _, keys := range pairKeys() {
		reader := fake.NewClientBuilder().WithObjects(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "ca"}, Data: map[string][]byte{keys[0]: root.certPEM, keys[1]: root.keyPEM},
		}).Build()
		got, err := Secret{Reader: reader, Namespace: "n", Name: "ca"}.Load(t.Context())
		require.NoError(t, err)
		require.NoError(t, got.Verify(now))
		_, err = Secret{Reader: reader, Namespace: "n", Name: "none"}.Load(t.Context())
		require.ErrorContains(t, err, "reading Secret/n/none")
	}
	reader := fake.NewClientBuilder().WithObjects(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "ca"}}).Build()
	_, err := Secret{Reader: reader, Namespace: "n", Name: "ca"}.Load(t.Context())
	require.ErrorContains(t, err, "none of the key pairs")
}

// vaultServer answers reads the way Vault does; version 2 stores want data/ in the path.
func vaultServer(t *testing.T, answers map[string]any) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, http.MethodGet, r.Method, "only reads")
		if r.Header.Get("X-Vault-Token") != "PLANTED-TOKEN" {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"errors":["permission denied for PLANTED-BODY"]}`))
			return
		}
		data, ok := answers[strings.TrimPrefix(r.URL.Path, "/v1/")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"errors":[]}`))
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
	}))
	t.Cleanup(server.Close)
	return server
}

func TestVault(t *testing.T) {
	t.Parallel()
	root := issue(nil, "ca", true, now.AddDate(10, 0, 0))
	fields := map[string]any{"private_key": string(root.keyPEM), "certificate": string(root.certPEM)}
	server := vaultServer(t, map[string]any{
		DefaultVaultPath("al9qy"): fields,
		"kv/data/ca":              map[string]any{"data": fields, "metadata": map[string]any{"version": 1}},
		"kv/data/deleted":         map[string]any{"data": nil, "metadata": map[string]any{"version": 1}},
		"own/names":               map[string]any{"k": string(root.keyPEM), "c": string(root.certPEM)},
		"half/pair":               map[string]any{"certificate": string(root.certPEM)},
	})
	token := NewToken("PLANTED-TOKEN")
	for name, source := range map[string]Vault{
		"the platform's path":        {Path: "pki-al9qy/gimmeallyourlovin"},
		"version 2 as one writes it": {Path: "kv/ca"},
		"version 2 in full":          {Path: "/kv/data/ca/"},
		"other fields":               {Path: "own/names", KeyField: "k", CertificateField: "c"},
	} {
		source.Address, source.Token = server.URL, token
		got, err := source.Load(t.Context())
		require.NoError(t, err, name)
		require.NoError(t, got.Verify(now), name)
	}
	for says, source := range map[string]Vault{
		"nothing is there":              {Path: "kv/none"},
		"deleted":                       {Path: "kv/deleted"},
		"field private_key is missing":  {Path: "half/pair"},
		"the path is missing":           {Path: "/"},
		"the server answered 403":       {Path: "kv/ca", Token: NewToken("wrong")},
		"reading Vault path half/other": {Path: "half/other"},
	} {
		source.Address = server.URL
		if source.Token.Empty() {
			source.Token = token
		}
		_, err := source.Load(t.Context())
		require.ErrorContains(t, err, says)
		assert.NotContains(t, err.Error(), "PLANTED")
		assert.NotContains(t, err.Error(), "wrong")
	}
	_, err := Vault{Path: "a/b", Token: token}.Load(t.Context())
	require.ErrorContains(t, err, "address is missing")
	_, err = Vault{Path: "a/b", Address: server.URL}.Load(t.Context())
	require.ErrorContains(t, err, "token is missing")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Vault{Path: "a/b", Address: server.URL, Token: token}.Load(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func FuzzParse(f *testing.F) {
	root := issue(nil, "ca", true, now.AddDate(10, 0, 0))
	f.Add(root.certPEM)
	f.Add(root.keyPEM)
	f.Add(append(bytes.Clone(root.certPEM), root.keyPEM...))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"))
	f.Fuzz(func(t *testing.T, text []byte) {
		certificates, err := ParseCertificates(text)
		assert.Equal(t, err == nil, len(certificates) > 0)
		key, err := ParsePrivateKey(text)
		assert.Equal(t, err == nil, key.Signer() != nil)
		if authority, err := ParseAuthority("fuzz", text, text); err == nil {
			_ = authority.Verify(now)
			_ = authority.String()
		}
	})
}
