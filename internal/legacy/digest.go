package legacy

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	digestPrefix = "hmac-sha256:"
	digestLength = 32
	// digestPurpose separates this use of the key material from any other.
	digestPurpose = "migration.giantswarm.io/digest/v1"
)

// Digester names secret values without giving them away: equal values of one cluster have equal digests, and nobody can try out
// guesses without knowing another secret of that cluster.
type Digester struct {
	key []byte
}

// Digester returns the digester of the cluster. Its key is derived from the service-account private key, else from the encryption
// key, else from all secret values, so a snapshot and a plan of the same cluster agree without sharing anything.
func (c *Cluster) Digester() *Digester {
	var material []byte
	switch {
	case c.Certificates["service-account"] != nil && len(c.Certificates["service-account"].KeyPEM) > 0:
		material = c.Certificates["service-account"].KeyPEM
	case c.Encryption != nil && len(c.Encryption.Object.Data) > 0:
		material = appendData(nil, c.Encryption.Object.Data)
	default:
		for _, component := range slices.Sorted(maps.Keys(c.Certificates)) {
			material = append(material, c.Certificates[component].KeyPEM...)
		}
		for i := range c.Secrets {
			material = appendData(material, c.Secrets[i].Object.Data)
		}
		if c.Kubeconfig != nil {
			material = appendData(material, c.Kubeconfig.Object.Data)
		}
	}
	return newDigester(c.ID, material)
}

func appendData(material []byte, data map[string][]byte) []byte {
	for _, key := range slices.Sorted(maps.Keys(data)) {
		material = append(append(material, key...), data[key]...)
	}
	return material
}

// newDigester derives a key; without material there is none, and Sum then says only that something was there.
func newDigester(id string, material []byte) *Digester {
	if len(material) == 0 {
		return &Digester{}
	}
	key, err := hkdf.Key(sha256.New, material, []byte(id), digestPurpose, sha256.Size)
	if err != nil {
		panic(fmt.Sprintf("deriving a key of %d bytes: %v", sha256.Size, err)) // only a wrong length can fail
	}
	return &Digester{key: key}
}

// Sum returns the digest of a value. A value that is a digest already is returned as it is: what a redacted snapshot holds
// compares with what the live cluster holds.
func (d *Digester) Sum(value []byte) string {
	if IsDigest(value) {
		return string(value)
	}
	if len(d.key) == 0 {
		return digestPrefix + strings.Repeat("0", digestLength)
	}
	mac := hmac.New(sha256.New, d.key)
	mac.Write(value)
	return digestPrefix + hex.EncodeToString(mac.Sum(nil))[:digestLength]
}

// IsDigest tells whether a value is what Sum returns.
func IsDigest(value []byte) bool {
	text := string(value)
	if len(text) != len(digestPrefix)+digestLength || !strings.HasPrefix(text, digestPrefix) {
		return false
	}
	return strings.Trim(text[len(digestPrefix):], "0123456789abcdef") == ""
}
