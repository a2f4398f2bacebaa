package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
)

// number derives a number from a seed; the same seed gives the same number.
func number(seed string, parts ...any) uint64 {
	sum := sha256.Sum256([]byte(seed + fmt.Sprintln(parts...)))
	return binary.BigEndian.Uint64(sum[:8])
}

// word derives a text of the given length over an alphabet.
func word(alphabet string, length int, seed string, parts ...any) string {
	var out strings.Builder
	for value := number(seed, parts...); out.Len() < length; value /= uint64(len(alphabet)) {
		out.WriteByte(alphabet[value%uint64(len(alphabet))])
	}
	return out.String()
}

const (
	letters      = "abcdefghijklmnopqrstuvwxyz"
	alphanumeric = letters + "0123456789"
	// safe is the alphabet of generated suffixes in Kubernetes, which avoids vowels.
	safe = "bcdfghjklmnpqrstvwxz2456789"
)

// shortID derives an id as the platform makes them: five characters with at least one letter and one digit. Ids in used are
// avoided, and the new one is added.
func shortID(used map[string]bool, seed string, parts ...any) string {
	for attempt := 0; ; attempt++ {
		id := word(letters, 1, seed, append(parts, attempt, "first")...) + word(alphanumeric, 4, seed, append(parts, attempt)...)
		if strings.ContainsAny(id, "0123456789") && !used[id] {
			used[id] = true
			return id
		}
	}
}

// organizations are invented customers.
func organizations() []string {
	return []string{
		"umbrella", "initech", "hooli", "vandelay", "wonka", "stark", "wayne", "tyrell", "cyberdyne", "soylent",
		"aperture", "monarch", "duff", "oceanic", "gringotts", "oscorp", "zorin", "virtucon", "spectre", "dunder",
	}
}

// purposes complete display names.
func purposes() []string {
	return []string{"production", "staging", "batch", "analytics", "shop", "intranet", "tests", "archive"}
}

func title(name string) string { return strings.ToUpper(name[:1]) + name[1:] }

// encryptionKey derives the text of an encryption key: base64 of 32 bytes.
func encryptionKey(id string) string {
	sum := sha256.Sum256([]byte("encryption/" + id))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// The networks of the VMs: one /21 per cluster out of 100.64.0.0/10, one /30 per host in it.
const (
	networkBits = 21
	maxClusters = 1 << (networkBits - 10)
	maxHosts    = 1 << (30 - networkBits)
)

// offset adds to an IPv4 address.
func offset(base string, add int) string {
	address := netip.MustParseAddr(base).As4()
	binary.BigEndian.PutUint32(address[:], binary.BigEndian.Uint32(address[:])+uint32(add)) //nolint:gosec // G115: add is small and positive.
	return netip.AddrFrom4(address).String()
}
