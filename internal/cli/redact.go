package cli

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
)

// redaction replaces what must never be printed.
const redaction = "[redacted]"

// redactor finds secrets in texts. It is the last line of defence, for error messages of libraries: our own code never puts a secret
// into a text.
type redactor struct {
	patterns []*regexp.Regexp
	keys     *regexp.Regexp

	mu sync.RWMutex
	// known are values that are secret whatever they look like.
	known []string
}

// shortest is how long a value has to be at least to be looked for: less would be found in words that mean something else.
const shortest = 8

// know has a value taken out of every text from now on.
func (r *redactor) know(secret string) {
	if len(secret) < shortest {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.known, secret) {
		r.known = append(r.known, secret)
	}
}

func newRedactor() *redactor {
	return &redactor{
		patterns: []*regexp.Regexp{
			// Certificates are public; every other block may be a key. Cut-off blocks count too.
			regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*(?:PRIVATE KEY|PARAMETERS)-----.*?(?:-----END [A-Z0-9 ]*-----|$)`),
			// JSON web tokens: three parts, the first two begin like the base64 of an object.
			regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?`),
			// Tokens of Vault and of kubeadm.
			regexp.MustCompile(`\b(?:hv[sbr]\.[A-Za-z0-9_-]{20,}|s\.[A-Za-z0-9]{24})\b`),
			regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),
			regexp.MustCompile(`(?i)\b(?:bearer|basic) [A-Za-z0-9+/=._~-]{8,}`),
			// Credentials in an address; the host stays readable.
			regexp.MustCompile(`(?i)([a-z][a-z0-9+.-]*://)[^\s/@:]+:[^\s/@]+@`),
		},
		keys: regexp.MustCompile(`(?i)^(?:.*[._-])?(?:token|password|passwd|secret|authorization|credentials?|private[._-]?key|client[._-]?key|ca[._-]?key|key[._-]?pem)$`),
	}
}

// text returns a text without secrets.
func (r *redactor) text(s string) string {
	r.mu.RLock()
	for _, secret := range r.known {
		s = strings.ReplaceAll(s, secret, redaction)
	}
	r.mu.RUnlock()
	for _, pattern := range r.patterns {
		replacement := redaction
		if pattern.NumSubexp() > 0 {
			replacement = "${1}" + redaction + "@"
		}
		s = pattern.ReplaceAllString(s, replacement)
	}
	return s
}

// Levels makes the redactor a hook for every log line.
func (r *redactor) Levels() []logrus.Level { return logrus.AllLevels }

// Fire cleans message and fields. Fields whose name says that they are secret lose their value whatever it is.
func (r *redactor) Fire(entry *logrus.Entry) error {
	entry.Message = r.text(entry.Message)
	for key, value := range entry.Data {
		switch v := value.(type) {
		case string:
			entry.Data[key] = r.text(v)
		case error:
			entry.Data[key] = r.text(v.Error())
		case []byte:
			entry.Data[key] = redaction
		case []string:
			cleaned := make([]string, len(v))
			for i := range v {
				cleaned[i] = r.text(v[i])
			}
			entry.Data[key] = cleaned
		}
		if r.keys.MatchString(key) {
			entry.Data[key] = redaction
		}
	}
	return nil
}

// printableText keeps text from elsewhere from moving a terminal's cursor.
func printableText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case r < 0x20, r == 0x7f, r >= 0x80 && r < 0xa0, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
			return '�'
		default:
			return r
		}
	}, s)
}
