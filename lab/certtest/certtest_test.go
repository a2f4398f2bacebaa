package certtest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/certtest"
)

func TestOnlyTheEndIsAnother(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	now := time.Now().Truncate(time.Second)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	raw, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	over, err := certtest.EndAt(now.Add(-time.Minute), cert, cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}))
	require.NoError(t, err)
	block, _ := pem.Decode(over)
	require.NotNil(t, block)
	ended, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	assert.True(t, ended.NotAfter.Equal(now.Add(-time.Minute)))
	assert.True(t, key.PublicKey.Equal(ended.PublicKey))
	require.NoError(t, ended.CheckSignatureFrom(ended))

	_, err = certtest.EndAt(now, nil, nil, nil)
	require.ErrorContains(t, err, "reading the CA")
}
