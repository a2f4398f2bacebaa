package legacy

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
)

// redactor replaces secret values of one cluster by digests. It works on what objects mean: Secrets by key, boot data file by
// file, kubeconfigs by field, everything else by the names of its fields (see IsSecret). What remains is searched for every secret
// value met on the way, for private keys, tokens and passwords in addresses, because people paste secrets where nobody expects them.
type redactor struct {
	digester *Digester
	// known are secret texts that may occur elsewhere, longest first.
	known []knownSecret
	// seen are names that everybody sees. With them, ordinary words are learnt as well; a snapshot would be destroyed by that, so its redactor has none.
	seen map[string]bool

	privateKey, encoded, jwt, userinfo, user, query, setting, flag, option, embedded *regexp.Regexp
}

// knownSecret is a text whose presence anywhere gives a secret away.
type knownSecret struct {
	text   string
	digest string
	// word tells that it counts only where nothing adjoins it that makes it part of something longer.
	word bool
}

// hide replaces a secret in a text.
func (k knownSecret) hide(text string) string {
	if !k.word {
		return strings.ReplaceAll(text, k.text, k.digest)
	}
	var b strings.Builder
	for from := 0; ; {
		at := strings.Index(text[from:], k.text)
		if at < 0 {
			b.WriteString(text[from:])
			return b.String()
		}
		at += from
		end := at + len(k.text)
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		after, _ := utf8.DecodeRuneInString(text[end:])
		b.WriteString(text[from:at])
		if adjoins(before) || adjoins(after) {
			b.WriteString(k.text)
		} else {
			b.WriteString(k.digest)
		}
		from = end
	}
}

func isOfWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// adjoins tells what makes a word part of a longer one, or of a name, a host or a path: a user called as the organization must not tear its addresses.
func adjoins(r rune) bool { return isOfWord(r) || strings.ContainsRune("./-_", r) }

func newRedactor(digester *Digester) *redactor {
	return &redactor{
		digester:   digester,
		privateKey: regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)`),
		encoded:    regexp.MustCompile(`[A-Za-z0-9+/_-]{40,}={0,2}`),
		jwt:        regexp.MustCompile(`eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*`),
		// A password may hold an @ that nobody escaped: the last one before a slash ends it.
		userinfo: regexp.MustCompile(`(://[^/\s:@"']*):([^\s/"']+)@`),
		// A token may stand in the place of a user. In the names of images, which have other schemes, the image stands there.
		user:  regexp.MustCompile(`(https?://)([^\s/:@"']+)@`),
		query: regexp.MustCompile(`(://[^\s?"']*\?)([^\s#"']+)`),
		// A setting is NAME=value or name: value on its own, in environment files, units, YAML and JSON.
		setting: regexp.MustCompile(`(?im)((?:^|[\s"'{,])(?:[a-z][\w.]*[_.-]?)?(?:password|passwd|token|secret|api[_-]?key|access[_-]?key|secret[_-]?key|auth|identitytoken|registrytoken)["']?[ \t]*[:=][ \t]*["']?)([^\s"',{}\[\]]+)`),
		// A flag in a command line has its value behind =. Behind a space anything may stand, so that only counts when it looks random.
		flag: regexp.MustCompile(`(?:^|[\s"'\x60=(;,])-{1,2}([A-Za-z][\w.-]*)(?:=(?:"([^"]+)"|'([^']+)'|([^\s"']+))|[ \t]+([^\s"'-][^\s"']*))`),
		// An option is an argument of its own, which needs no quotes.
		option: regexp.MustCompile(`^-{0,2}([A-Za-z][\w./-]*)=(?s:(.*))$`),
		// embedded are the fields of a kubeconfig that hold secrets.
		embedded: regexp.MustCompile(`(?m)((?:^|[\s"{,-])"?(client-key-data|token|password|id-token|refresh-token|access-token|client-secret)"?[ \t]*:[ \t]*["']?)([^\s"',{}]+)`),
	}
}

// Redaction shows single values the way a redacted snapshot holds them, so that plans and reports give away no more than that.
type Redaction struct{ redactor *redactor }

// Redaction returns the cluster's: it also finds what the cluster's own Secrets hold wherever somebody has pasted it.
func (c *Cluster) Redaction() *Redaction {
	r := newRedactor(c.Digester())
	mine, _ := c.objects()
	r.seen = namesSeen(mine)
	r.seen[c.Organization] = true
	for _, o := range mine {
		if isSecretObject(o) {
			r.learnSecret(o.raw)
		}
	}
	r.ready()
	return &Redaction{r}
}

// namesSeen are the names and labels of objects: they are shown everywhere, so whoever puts one into a Secret hides nothing.
func namesSeen(objects []object) map[string]bool {
	seen := map[string]bool{}
	for _, o := range objects {
		seen[o.ref.Name], seen[o.ref.Namespace] = true, true
		labels, _ := valueAt(o.raw, "metadata", "labels").(map[string]any)
		for _, value := range labels {
			if text, ok := value.(string); ok {
				seen[text] = true
			}
		}
	}
	return seen
}

// Text returns a text that stands under a name without what is secret in it.
func (r *Redaction) Text(name, text string) string {
	switch {
	case IsSecret(name, text):
		return r.redactor.digester.Sum([]byte(text))
	case isJSONObject(text):
		return r.redactor.applied(text)
	}
	return r.redactor.document(text)
}

// Known returns a text without the values of the cluster's own Secrets.
func (r *Redaction) Known(text string) string { return r.redactor.hideKnown(text) }

// learn remembers a secret value so that it is found elsewhere. Values that are ordinary words or names are not learnt for a snapshot:
// replacing them everywhere would destroy what it is for.
func (r *redactor) learn(value []byte) {
	text := strings.TrimSpace(string(value))
	if IsDigest([]byte(text)) {
		return
	}
	digest := r.digester.Sum(value)
	if block, _ := pem.Decode([]byte(text)); block != nil || strings.ContainsAny(text, "\n") {
		// A line from the middle identifies a key, however it is indented or escaped.
		lines := strings.Fields(text)
		if line := lines[len(lines)/2]; len(line) >= 40 && strings.Contains(text, "PRIVATE KEY-----") {
			r.known = append(r.known, knownSecret{text: line, digest: digest})
		} else if block == nil && r.seen != nil {
			r.known = append(r.known, knownSecret{text, digest, true})
		}
	} else if looksRandom(text) || r.isWhole(text) {
		word := !looksRandom(text)
		r.known = append(r.known, knownSecret{text, digest, word})
		// A value that was made with echo ends in a newline; where it is pasted it need not.
		for _, form := range [][]byte{value, []byte(text)} {
			r.known = append(r.known, knownSecret{base64.StdEncoding.EncodeToString(form), digest, true})
		}
	}
	// In base64 the text shows only in one of three alignments; the one of a value encoded alone is what occurs.
	if len(value) >= 24 {
		encoded := base64.StdEncoding.EncodeToString(value)
		from := len(encoded) / 2
		r.known = append(r.known, knownSecret{text: encoded[from:min(from+64, len(encoded))], digest: digest})
	}
}

// isWhole tells values that are looked for as a whole although they are ordinary words: neither names that everybody sees nor addresses, paths and versions.
func (r *redactor) isWhole(text string) bool {
	const shortest = 8
	if r.seen == nil || len(text) < shortest || r.seen[text] || refersOnly(text) {
		return false
	}
	name := strings.IndexFunc(text, func(c rune) bool { return !isOfWord(c) && !strings.ContainsRune("._:/-", c) }) < 0
	return !name || !strings.ContainsAny(text, ".:/")
}

// looksRandom tells passwords and tokens from words and names.
func looksRandom(text string) bool {
	const shortest = 12
	if len(text) < shortest || strings.ContainsAny(text, " \t\n/.:") && !strings.HasPrefix(text, "eyJ") && !strings.HasSuffix(text, "=") {
		return false
	}
	return strings.ContainsAny(text, "0123456789") && strings.IndexFunc(text, func(c rune) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }) >= 0
}

// ready sorts what was learnt; call it between learning and redacting.
func (r *redactor) ready() {
	slices.SortFunc(r.known, func(a, b knownSecret) int {
		return 2*(len(b.text)-len(a.text)) + strings.Compare(a.text, b.text)
	})
	r.known = slices.CompactFunc(r.known, func(a, b knownSecret) bool { return a.text == b.text })
}

// learnSecret learns the values of a Secret.
func (r *redactor) learnSecret(raw map[string]any) {
	kind := textAt(raw, "type")
	eachDatum(raw, func(key string, value []byte, _ bool) ([]byte, bool) {
		switch {
		case isPublicDatum(kind, key, value):
		case !isKubeconfig(value):
			r.learn(value)
		default:
			for _, match := range r.embedded.FindAllSubmatch(value, -1) {
				secret := match[3]
				if decoded, err := base64.StdEncoding.DecodeString(string(secret)); err == nil && string(match[2]) == "client-key-data" {
					secret = decoded
				}
				r.learn(secret)
			}
		}
		return nil, false
	})
}

// object redacts one object in place.
func (r *redactor) object(raw map[string]any) {
	kind, version := textAt(raw, "kind"), textAt(raw, "apiVersion")
	isSecret := kind == "Secret" && version == "v1"
	switch {
	case isSecret:
		if annotations, ok := valueAt(raw, "metadata", "annotations").(map[string]any); ok {
			if applied, found := annotations[corev1.LastAppliedConfigAnnotation].(string); found {
				annotations[corev1.LastAppliedConfigAnnotation] = r.digester.Sum([]byte(applied))
			}
		}
		r.secret(raw)
		r.walk("metadata", raw["metadata"])
	case kind == "ConfigMap" && version == "v1":
		r.configMap(raw)
		r.walk("metadata", raw["metadata"])
	default:
		r.fields("", raw)
	}
}

// secret redacts the values of a Secret, but for those that are public.
func (r *redactor) secret(raw map[string]any) {
	secretType := textAt(raw, "type")
	eachDatum(raw, func(key string, value []byte, valid bool) ([]byte, bool) {
		if valid && isPublicDatum(secretType, key, value) {
			return nil, false
		}
		return r.datum(value), true
	})
}

// configMap redacts what the values of a ConfigMap may hold: boot data or settings.
func (r *redactor) configMap(raw map[string]any) {
	data, _ := raw["data"].(map[string]any)
	for key, value := range data {
		text, ok := value.(string)
		switch {
		case ok && key == "user_data":
			data[key] = r.userData(text)
		case ok && !strings.Contains(text, "\n") && IsSecret(key, text): // a longer text is a file, which may be called anything
			data[key] = r.digester.Sum([]byte(text))
		case ok:
			data[key] = r.document(text)
		}
	}
	r.walk("", raw["binaryData"])
}

// applied redacts an object in an annotation, such as the copy that kubectl leaves. What holds no secret keeps its bytes.
func (r *redactor) applied(text string) string {
	object, err := decodeJSONObject(text)
	if err != nil {
		return r.digester.Sum([]byte(text))
	}
	before, errBefore := encodeJSON(object)
	r.object(object)
	after, errAfter := encodeJSON(object)
	switch {
	case errBefore != nil || errAfter != nil:
		return r.digester.Sum([]byte(text))
	case bytes.Equal(before, after):
		return text
	}
	return string(after)
}

// eachDatum calls change for every value of a Secret's data and stringData and stores what it returns.
// Data that is no base64 is passed as it stands, marked invalid.
func eachDatum(raw map[string]any, change func(key string, value []byte, valid bool) ([]byte, bool)) {
	for _, field := range []string{"data", "stringData"} {
		if raw[field] == nil {
			continue
		}
		data, ok := raw[field].(map[string]any)
		if !ok {
			if changed, replace := change(field, mustJSON(raw[field]), false); replace {
				raw[field] = string(changed)
			}
			continue
		}
		for key, item := range data {
			text, isText := item.(string)
			value, valid := []byte(text), isText
			if !isText {
				value = mustJSON(item)
			} else if field == "data" {
				decoded, err := base64.StdEncoding.DecodeString(text)
				if valid = err == nil; valid {
					value = decoded
				}
			}
			changed, replace := change(key, value, valid)
			if !replace || bytes.Equal(changed, value) {
				continue
			}
			if field == "data" {
				data[key] = base64.StdEncoding.EncodeToString(changed)
			} else {
				data[key] = string(changed)
			}
		}
	}
}

// isPublicDatum tells the values of Secrets that are no secrets and that checks need: certificates, public keys, the namespace of
// a token, the format of bootstrap data.
func isPublicDatum(secretType, key string, value []byte) bool {
	if IsDigest(value) || len(value) == 0 {
		return true
	}
	if secretType == string(corev1.SecretTypeServiceAccountToken) && key == corev1.ServiceAccountNamespaceKey {
		return true
	}
	if slices.Contains([]string{"cloud-config", "ignition", "#cloud-config"}, strings.TrimSpace(string(value))) {
		return true // The format of bootstrap data, which templates name as well, and bootstrap data that do nothing.
	}
	rest, found := value, false
	for {
		block, after := pem.Decode(rest)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" && !strings.HasSuffix(block.Type, "PUBLIC KEY") && block.Type != "X509 CRL" {
			return false
		}
		if len(block.Headers) > 0 {
			return false
		}
		found, rest = true, after
	}
	// Nothing may hide around the blocks, either.
	if !found || len(bytes.TrimSpace(rest)) > 0 {
		return false
	}
	return bytes.HasPrefix(bytes.TrimSpace(value), []byte("-----BEGIN ")) && bytes.Count(value, []byte("-----BEGIN ")) == bytes.Count(value, []byte("-----END "))
}

func isKubeconfig(value []byte) bool {
	return bytes.Contains(value, []byte("clusters")) && bytes.Contains(value, []byte("users")) && bytes.Contains(value, []byte("Config"))
}

// datum redacts one secret value: kubeconfigs keep their public part, everything else becomes a digest.
func (r *redactor) datum(value []byte) []byte {
	if isKubeconfig(value) {
		return []byte(r.kubeconfig(string(value)))
	}
	return []byte(r.digester.Sum(value))
}

// kubeconfig replaces the fields that hold secrets. Embedded keys stay base64, so that the document still parses.
func (r *redactor) kubeconfig(text string) string {
	redacted := replaceGroups(r.embedded, text, func(groups []string) string {
		key, value := groups[2], groups[3]
		if key != "client-key-data" {
			return groups[1] + r.digester.Sum([]byte(value))
		}
		decoded, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			decoded = []byte(value)
		}
		return groups[1] + base64.StdEncoding.EncodeToString([]byte(r.digester.Sum(decoded)))
	})
	return r.text(redacted)
}

// document redacts a text that may be a kubeconfig or hold settings.
func (r *redactor) document(text string) string {
	if isKubeconfig([]byte(text)) {
		text = r.kubeconfig(text)
	}
	return r.settings(r.text(text))
}

// settings redacts values that a name marks as credentials, but not what merely refers to one: paths, templates, short words. Both
// stand on one line, and on most lines there is neither.
func (r *redactor) settings(text string) string {
	if !mayBeSecret(text) {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		if mayBeSecret(line) {
			line = r.setOn(r.flags(line))
		}
		b.WriteString(line)
	}
	return b.String()
}

// setOn redacts the settings on a line.
func (r *redactor) setOn(line string) string {
	return replaceGroups(r.setting, line, func(groups []string) string {
		value := groups[2]
		const shortest = 8
		if len(value) < shortest || strings.ContainsAny(value[:1], "/$%<.") || strings.Contains(value, "://") || IsDigest([]byte(value)) || !strings.ContainsAny(value, "0123456789+/=_-!#&*") {
			return groups[0]
		}
		return groups[1] + r.digester.Sum([]byte(value))
	})
}

// flags redacts the values of flags in a command line.
func (r *redactor) flags(text string) string {
	if !strings.Contains(text, "-") {
		return text
	}
	return replaceGroups(r.flag, text, func(groups []string) string {
		value, spaced := cmp.Or(groups[2], groups[3], groups[4]), groups[5]
		switch {
		case value != "" && IsSecret(groups[1], value):
		case spaced != "" && looksRandom(spaced) && IsSecret(groups[1], spaced):
			value = spaced
		default:
			return groups[0]
		}
		at := strings.LastIndex(groups[0], value)
		return groups[0][:at] + r.digester.Sum([]byte(value)) + groups[0][at+len(value):]
	})
}

// argument redacts an item of a list: what follows a flag of its own, NAME=value, or a command line.
func (r *redactor) argument(before, text string) string {
	if strings.HasPrefix(before, "-") && !strings.ContainsAny(before, "= \n") && !strings.HasPrefix(text, "-") && IsSecret(strings.TrimLeft(before, "-"), text) {
		return r.digester.Sum([]byte(text))
	}
	if option := r.option.FindStringSubmatch(text); option != nil && IsSecret(option[1], option[2]) {
		return strings.TrimSuffix(text, option[2]) + r.digester.Sum([]byte(option[2]))
	}
	return r.settings(r.text(text))
}

// text redacts what is secret wherever it stands.
func (r *redactor) text(text string) string {
	const shortest = 8
	if len(text) < shortest {
		return text
	}
	if strings.Contains(text, "PRIVATE KEY-----") {
		text = r.privateKey.ReplaceAllStringFunc(text, func(key string) string { return r.digester.Sum([]byte(key)) })
	}
	if strings.Contains(text, "eyJ") {
		text = r.jwt.ReplaceAllStringFunc(text, func(token string) string { return r.digester.Sum([]byte(token)) })
	}
	if strings.Contains(text, "://") {
		text = r.addresses(text)
	}
	if strings.Contains(text, "LS0tLS1CRUdJTi") {
		text = r.encoded.ReplaceAllStringFunc(text, func(word string) string {
			decoded, err := base64.StdEncoding.DecodeString(word)
			if err != nil || !bytes.Contains(decoded, []byte("PRIVATE KEY-----")) {
				return word
			}
			return base64.StdEncoding.EncodeToString([]byte(r.digester.Sum(decoded)))
		})
	}
	return r.hideKnown(text)
}

// hideKnown redacts what was learnt.
func (r *redactor) hideKnown(text string) string {
	for _, secret := range r.known {
		if strings.Contains(text, secret.text) {
			text = secret.hide(text)
		}
	}
	return text
}

// addresses redacts passwords, tokens and parameters in the addresses of a text.
func (r *redactor) addresses(text string) string {
	if strings.Contains(text, "@") {
		text = replaceGroups(r.userinfo, text, func(groups []string) string {
			if IsDigest([]byte(strings.TrimSuffix(strings.TrimPrefix(groups[0], "://"), "@"))) {
				return groups[0] // of a token
			}
			return groups[1] + ":" + r.digester.Sum([]byte(groups[2])) + "@"
		})
		text = replaceGroups(r.user, text, func(groups []string) string {
			if !looksRandom(groups[2]) {
				return groups[0]
			}
			return groups[1] + r.digester.Sum([]byte(groups[2])) + "@"
		})
	}
	if strings.Contains(text, "?") {
		text = replaceGroups(r.query, text, func(groups []string) string { return groups[1] + r.parameters(groups[2]) })
	}
	return text
}

// parameters redacts those in the query of an address.
func (r *redactor) parameters(query string) string {
	list := strings.Split(query, "&")
	for i := range list {
		name, value, _ := strings.Cut(list[i], "=")
		if IsSecret(name, value) {
			list[i] = name + "=" + r.digester.Sum([]byte(value))
		}
	}
	return strings.Join(list, "&")
}

// walk redacts a decoded value, maps and lists in place, and returns it. name is what the value stands under.
func (r *redactor) walk(name string, value any) any {
	switch v := value.(type) {
	case map[string]any:
		r.fields(name, v)
	case []any:
		r.items(name, v)
	case string:
		return r.named(name, v)
	case int64, float64:
		if IsSecret(name, v) {
			return r.digester.Sum(fmt.Append(nil, v))
		}
	}
	return value
}

// named redacts a text that stands under a name.
func (r *redactor) named(name, text string) string {
	if IsSecret(name, text) {
		return r.digester.Sum([]byte(text))
	}
	return r.text(text)
}

// fields redacts what a map holds.
func (r *redactor) fields(name string, fields map[string]any) {
	variable, _ := fields["name"].(string)
	for key, item := range fields {
		under := key
		text, isText := item.(string)
		switch {
		case name == "annotations" && isText:
			fields[key] = r.annotation(key, text)
			continue
		case IsSelecting(name): // labels go into selectors and Nodes, where everybody sees them and a digest is not allowed
			under = ""
		case key == "value" && variable != "":
			under = variable
		case key == "value":
			under = name
		case key == "key" && pointsAt(fields):
			under = ""
		}
		fields[key] = r.walk(under, item)
	}
}

// IsSelecting tells the names of maps whose keys are labels.
func IsSelecting(name string) bool {
	return slices.Contains([]string{"labels", "matchLabels", "nodeSelector", "selector"}, name)
}

// pointsAt tells maps whose key is that of something else, such as a reference to a Secret or a toleration.
func pointsAt(fields map[string]any) bool {
	return slices.ContainsFunc([]string{"name", "operator", "effect", "path"}, func(name string) bool { return fields[name] != nil })
}

// items redacts what a list holds. Texts in lists are arguments and commands as a rule.
func (r *redactor) items(name string, items []any) {
	before := ""
	for i, item := range items {
		text, isText := item.(string)
		switch {
		case isText && IsSecret(name, text):
			items[i] = r.digester.Sum([]byte(text))
		case isText:
			items[i] = r.argument(before, text)
		default:
			items[i] = r.walk(name, item)
		}
		before = text
	}
}

// annotation redacts the value of an annotation: a text, or an object in JSON.
func (r *redactor) annotation(name, text string) string {
	switch {
	case IsSecret(name, text):
		return r.digester.Sum([]byte(text))
	case name == corev1.LastAppliedConfigAnnotation:
		return r.applied(text)
	case isJSONObject(text):
		return r.applied(text)
	}
	return r.settings(r.text(text))
}

func isJSONObject(text string) bool {
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return false
	}
	_, err := decodeJSONObject(text)
	return err == nil
}

// userData redacts a node's boot data. A document without secrets is returned as it is, byte for byte; one that cannot be read
// may hold anything, so only its digest stays.
func (r *redactor) userData(text string) string {
	unpacked, err := unpackUserData(text, Options{}.withDefaults().MaxIgnitionBytes)
	if err != nil {
		return r.digester.Sum([]byte(text))
	}
	document, err := decodeJSONObject(string(unpacked))
	if err != nil {
		return r.digester.Sum([]byte(text))
	}
	before, errBefore := encodeJSON(document)
	r.ignition(document)
	after, errAfter := encodeJSON(document)
	if errBefore != nil || errAfter != nil {
		return r.digester.Sum([]byte(text))
	}
	if bytes.Equal(before, after) {
		return text
	}
	packed, err := packUserData(after)
	if err != nil {
		return r.digester.Sum([]byte(text))
	}
	return packed
}

// packUserData writes boot data the way the operator does. The gzip header holds neither a name nor a time.
func packUserData(document []byte) (string, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(document)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return "", fmt.Errorf("packing boot data: %w", err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), nil
}

// ignition redacts a decoded document in place.
func (r *redactor) ignition(document map[string]any) {
	files, _ := valueAt(document, "storage", "files").([]any)
	for _, item := range files {
		file, ok := item.(map[string]any)
		if !ok {
			continue
		}
		if contents, ok := file["contents"].(map[string]any); ok {
			r.ignitionFile(textAt(file, "path"), contents)
		}
	}
	users, _ := valueAt(document, "passwd", "users").([]any)
	for _, item := range users {
		if user, ok := item.(map[string]any); ok {
			if hash, ok := user["passwordHash"].(string); ok && hash != "" {
				user["passwordHash"] = r.digester.Sum([]byte(hash))
			}
		}
	}
	for _, section := range []string{"systemd", "networkd"} {
		units, _ := valueAt(document, section, "units").([]any)
		for _, unit := range units {
			r.unit(unit)
			dropins, _ := valueAt(unit, "dropins").([]any)
			for _, dropin := range dropins {
				r.unit(dropin)
			}
		}
	}
}

func (r *redactor) unit(value any) {
	if unit, ok := value.(map[string]any); ok {
		if contents, ok := unit["contents"].(string); ok {
			unit["contents"] = r.document(contents)
		}
	}
}

// ignitionFile redacts the contents of one file.
func (r *redactor) ignitionFile(name string, contents map[string]any) {
	source, ok := contents["source"].(string)
	if !ok || source == "" {
		return
	}
	if !strings.HasPrefix(source, "data:") {
		contents["source"] = r.text(source)
		return
	}
	content, err := decodeDataURL(source)
	if err == nil && textAt(contents, "compression") == "gzip" {
		content, err = gunzip(content, Options{}.withDefaults().MaxIgnitionBytes)
	}
	if err != nil {
		contents["source"] = dataURL([]byte(r.digester.Sum([]byte(source))))
		return
	}
	var redacted string
	switch {
	case len(content) == 0:
		return
	case !isSecretFile(name, content):
		redacted = r.document(string(content))
	case isKubeconfig(content):
		redacted = r.kubeconfig(string(content))
	default:
		redacted = r.digester.Sum(content)
	}
	if redacted == string(content) {
		return
	}
	contents["source"] = dataURL([]byte(redacted))
	delete(contents, "compression")
	delete(contents, "verification") // a plain hash of the content would let anybody try out guesses
}

func dataURL(content []byte) string {
	return "data:text/plain;charset=utf-8;base64," + base64.StdEncoding.EncodeToString(content)
}

// replaceGroups replaces every match by what change makes of its groups.
func replaceGroups(expression *regexp.Regexp, text string, change func(groups []string) string) string {
	matches := expression.FindAllStringSubmatchIndex(text, -1)
	if matches == nil {
		return text
	}
	var b strings.Builder
	at := 0
	for _, match := range matches {
		groups := make([]string, len(match)/2)
		for i := range groups {
			if match[2*i] >= 0 {
				groups[i] = text[match[2*i]:match[2*i+1]]
			}
		}
		b.WriteString(text[at:match[0]])
		b.WriteString(change(groups))
		at = match[1]
	}
	b.WriteString(text[at:])
	return b.String()
}
