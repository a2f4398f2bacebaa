package legacy

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/huandu/xstrings"
)

// IsSecret tells from the name of a field, variable, flag or annotation whether its value is secret as a whole. What snapshots, plans
// and reports must not show is decided here and nowhere else. Values that merely refer to a secret are none: paths, names, switches.
func IsSecret(name string, value any) bool {
	switch v := value.(type) {
	case string:
		return secretName(name, v) && !refersOnly(v)
	case int64, float64:
		return strings.Contains(strings.ToLower(name), "passw") && secretName(name, "")
	}
	return false
}

// secretName tells the names of secrets. The value matters only for a field that is called key and nothing else: most of those name a
// key of something.
func secretName(name, value string) bool {
	name = name[strings.LastIndexByte(name, '/')+1:] // the domain of an annotation, the folder of a key
	if !mayBeSecret(name) {
		return false
	}
	name = dashed(name)
	last := name[strings.LastIndexByte(name, '-')+1:]
	switch {
	case slices.Contains(referringNames(), last) || strings.HasSuffix(name, "initial-cluster-token"): // the latter is a name that etcd's members share
		return false
	case name == "key":
		return looksRandom(value)
	case slices.Contains([]string{"pass", "pwd", "auth", "authorization"}, last):
		return true
	case last == "key":
		return !slices.Contains([]string{"public-key", "pub-key", "topology-key"}, lastWords(name))
	}
	return containsAny(name, secretWords())
}

// mayBeSecret tells names that are worth a closer look: most are not.
func mayBeSecret(name string) bool {
	return containsAny(strings.ToLower(name), []string{"pass", "pwd", "token", "secret", "credential", "key", "auth"})
}

// secretWords give a secret away wherever they stand in a name.
func secretWords() []string {
	return []string{
		"password", "passwd", "passphrase", "passcode", "token", "secret", "credential",
		"api-key", "apikey", "access-key", "accesskey", "private-key", "privatekey", "secret-key", "encryptionkey", "signingkey", "sshkey", "authkey",
	}
}

// referringNames are last words of names whose values say where a secret is, or how it is dealt with.
func referringNames() []string {
	return []string{
		"name", "names", "namespace", "ref", "refs", "reference", "file", "files", "path", "paths", "dir", "directory",
		"type", "kind", "ttl", "seconds", "second", "policy", "length", "enabled",
	}
}

// refersOnly tells values that are no secrets whatever they are called: switches, paths and references to variables.
func refersOnly(value string) bool {
	switch {
	case value == "", value == "true", value == "false":
		return true
	case strings.HasPrefix(value, "/"):
		// Base64 may begin with a slash as well, but does not go on in small letters alone.
		return strings.Trim(value, "abcdefghijklmnopqrstuvwxyz0123456789._-/") == ""
	}
	for _, quotes := range [][2]string{{"$(", ")"}, {"${", "}"}, {"{{", "}}"}} {
		if strings.HasPrefix(value, quotes[0]) && strings.HasSuffix(value, quotes[1]) {
			return true
		}
	}
	return false
}

// dashed spells a name in small letters with dashes between its words, whether it was registryPassword, REGISTRY_PASSWORD or
// registry.password.
func dashed(name string) string {
	words := strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return r
		}
		return '-'
	}, name)
	return strings.Trim(xstrings.ToKebabCase(words), "-")
}

// lastWords are the last two words of a dashed name.
func lastWords(name string) string {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return name
	}
	return name[strings.LastIndexByte(name[:i], '-')+1:]
}

func containsAny(text string, words []string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, word) })
}
