package agent

import (
	"regexp"
	"strings"
)

// hidden replaces what a log must not tell.
const hidden = "[redacted]"

// redactor takes credentials out of a guest's log before it leaves the guest.
type redactor struct {
	patterns []*regexp.Regexp
	blocks   *regexp.Regexp
}

func newRedactor() *redactor {
	return &redactor{
		// A key may be cut off by the tail: everything from its beginning, or up to its end, goes.
		blocks: regexp.MustCompile(`(?s)(-----BEGIN [A-Z0-9 ]+-----.*?(-----END [A-Z0-9 ]+-----|\z)|\A[^-]*-----END [A-Z0-9 ]+-----)`),
		patterns: []*regexp.Regexp{
			// Bootstrap tokens, kubeadm's certificate keys and CA hashes, bearer tokens of any kind.
			regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),
			regexp.MustCompile(`\b[0-9a-f]{64}\b`),
			regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]+){0,2}`),
			regexp.MustCompile(`(?i)(bearer|basic)\s+[A-Za-z0-9+/=._~-]{8,}`),
			regexp.MustCompile(`(?i)([a-z0-9_-]*(password|passwd|secret|token|api[-_]?key|certificate-key|credential)[a-z0-9_-]*["']?\s*[:= ]\s*)("[^"]*"|'[^']*'|\S+)`),
			regexp.MustCompile(`(://[^/\s:@]+:)[^@\s]+@`),
			// Long base64 is a certificate, a key or a Secret's value.
			regexp.MustCompile(`[A-Za-z0-9+/]{60,}={0,2}`),
		},
	}
}

// clean gives the text without credentials. It rather takes too much than too little.
func (r *redactor) clean(text string) string {
	text = r.blocks.ReplaceAllString(text, hidden)
	for i, p := range r.patterns {
		switch i {
		case 4: // name = value: the name stays
			text = p.ReplaceAllString(text, "${1}"+hidden)
		case 5: // scheme://user:password@: the user stays
			text = p.ReplaceAllString(text, "${1}"+hidden+"@")
		default:
			text = p.ReplaceAllString(text, hidden)
		}
	}
	return strings.ToValidUTF8(text, "?")
}
