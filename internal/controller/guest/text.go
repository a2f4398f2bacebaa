package guest

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean makes a text from a guest fit for conditions and events: without control characters and credentials, and at most limit
// bytes long, of which the end is kept, because that is where the error is.
func Clean(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case r == '\t':
			return ' '
		case r == utf8.RuneError || !unicode.IsPrint(r):
			return -1
		default:
			return r
		}
	}, text)
	// The agent did this already. A guest that does not run our agent did not.
	for _, secret := range secrets {
		text = secret.ReplaceAllString(text, "[redacted]")
	}
	text = strings.TrimSpace(text)
	if len(text) <= limit {
		return text
	}
	const mark = "…"
	cut := max(0, len(text)-limit+len(mark))
	for cut < len(text) && !utf8.RuneStart(text[cut]) {
		cut++
	}
	return mark + text[cut:]
}

// MaxEvent is how long the note of an event may be: the API refuses more than 1 KiB, and client-go drops what is refused.
const MaxEvent = 1000

// Clip makes a condition's message short enough for an event, of which the beginning is kept: it says what failed.
func Clip(message string) string {
	const mark = "…"
	if len(message) <= MaxEvent {
		return message
	}
	return Clean(message[:MaxEvent-len(mark)], MaxEvent) + mark
}

// secrets are the shapes of what kubeadm and its neighbours may print: bootstrap tokens, certificate keys, private keys, service
// account tokens.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),
	regexp.MustCompile(`\b[0-9a-f]{64}\b`),
	regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`),
	regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+`),
}
