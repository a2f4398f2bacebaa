package legacy

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"reflect"
	"strings"

	ignitiontypes "github.com/flatcar/ignition/config/v2_4/types"
)

// errNoUserData tells that a ConfigMap has no boot data.
var errNoUserData = errors.New("user_data is missing")

// maxIgnitionFiles is far beyond any real document and keeps a small hostile one from unpacking into much.
const maxIgnitionFiles = 10000

// DecodeIgnition decodes the value of a node ConfigMap's key user_data: base64 of gzip of an Ignition 2.x document.
// Plain and merely base64-encoded documents are accepted as well. The limit is in bytes of the decoded document; 0 means the default.
// Fields that cannot be decoded are left zero; why is returned as the list of complaints.
func DecodeIgnition(userData string, limit int64) (ignition *Ignition, complaints []string, err error) {
	if limit <= 0 {
		limit = Options{}.withDefaults().MaxIgnitionBytes
	}
	ignition, err = decodeUserData(userData, limit, nil, func(_, path, message string) { complaints = append(complaints, path+": "+message) })
	return ignition, complaints, err
}

// decodeUserData unpacks and decodes. Problems inside the document are reported; an error means that there is no document.
func decodeUserData(userData string, limit int64, docs *documents, report func(id, path, message string)) (*Ignition, error) {
	text, err := unpackUserData(userData, limit)
	if err != nil {
		return nil, err
	}
	raw, err := decodeJSONObject(string(text))
	if err != nil {
		return nil, fmt.Errorf("reading the Ignition document: %w", err)
	}
	var config ignitiontypes.Config
	if err := json.Unmarshal(text, &config); err != nil {
		// encoding/json leaves out what does not fit and goes on, but names only the first field.
		if _, ok := errors.AsType[*json.UnmarshalTypeError](err); !ok {
			return nil, fmt.Errorf("reading the Ignition document: %w", err)
		}
		fit(raw, reflect.TypeFor[ignitiontypes.Config](), "", func(path, what string) {
			report(ProblemIgnitionType, "data.user_data."+path, "field "+path+": "+what)
		})
	}
	if !strings.HasPrefix(config.Ignition.Version, "2.") {
		report(ProblemIgnitionVersion, "data.user_data.ignition.version", fmt.Sprintf("version %q is not 2.x", config.Ignition.Version))
	}
	return ignitionOf(config, raw, limit, docs, report), nil
}

// unpackUserData undoes base64 and gzip.
func unpackUserData(userData string, limit int64) ([]byte, error) {
	userData = strings.TrimSpace(userData)
	if userData == "" {
		return nil, errNoUserData
	}
	if int64(len(userData)) > 2*limit {
		return nil, errTooMuch
	}
	data := []byte(userData)
	if userData[0] != '{' {
		decoded, err := base64.StdEncoding.DecodeString(userData)
		if err != nil {
			return nil, fmt.Errorf("undoing base64: %w", err)
		}
		data = decoded
	}
	if len(data) > 1 && data[0] == 0x1f && data[1] == 0x8b {
		return gunzip(data, limit)
	}
	if int64(len(data)) > limit {
		return nil, errTooMuch
	}
	return data, nil
}

func gunzip(data []byte, limit int64) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("undoing gzip: %w", err)
	}
	var b bytes.Buffer
	b.Grow(int(min(int64(len(data))*4, limit)))
	n, err := io.Copy(&b, io.LimitReader(r, limit+1))
	switch {
	case n > limit:
		return nil, errTooMuch
	case err != nil:
		return nil, fmt.Errorf("undoing gzip: %w", err)
	}
	return b.Bytes(), nil
}

// ignitionOf takes over what a node's boot data holds: files, directories, units and users. It ends early when the files together
// are larger than the limit.
func ignitionOf(config ignitiontypes.Config, raw map[string]any, limit int64, docs *documents, report func(id, path, message string)) *Ignition {
	out := &Ignition{Version: config.Ignition.Version, Raw: raw}
	if !out.addFiles(config.Storage.Files, limit, docs, report) {
		return out
	}
	for i := range config.Storage.Directories {
		from := &config.Storage.Directories[i]
		out.Directories = append(out.Directories, IgnitionDirectory{Path: from.Path, Mode: value(from.Mode), User: userName(from.User), Group: groupName(from.Group)})
	}
	out.addUnits(config.Systemd.Units)
	out.addUsers(config.Passwd.Users)
	return out
}

// addFiles decodes the files; false when they are larger than the limit.
func (out *Ignition) addFiles(files []ignitiontypes.File, limit int64, docs *documents, report func(id, path, message string)) bool {
	left := limit
	for i := range files {
		if i == maxIgnitionFiles {
			report(ProblemIgnitionTooLarge, "data.user_data.storage.files", fmt.Sprintf("more than %d files; the rest was not read", maxIgnitionFiles))
			break
		}
		from := &files[i]
		file := IgnitionFile{Path: from.Path, Mode: value(from.Mode), User: userName(from.User), Group: groupName(from.Group), Append: from.Append}
		at := fmt.Sprintf("data.user_data.storage.files[%d].contents.source", i)
		switch source := from.Contents.Source; {
		case source == "":
			// No source and an empty data URL are different things, but a typed document cannot tell them apart.
			_, given := sourceAt(out.Raw, i)
			file.NoSource = !given
		case !strings.HasPrefix(source, "data:"):
			file.Source = source
			report(ProblemIgnitionRemote, at, fmt.Sprintf("%s is fetched from %s", from.Path, withoutSecrets(source)))
		default:
			content, err := decodeDataURL(source)
			if err == nil && from.Contents.Compression == "gzip" {
				content, err = gunzip(content, left)
			}
			if err != nil {
				report(ProblemIgnitionFile, at, fmt.Sprintf("%s: %v", from.Path, err))
				break
			}
			if left -= int64(len(content)); left < 0 {
				report(ProblemIgnitionTooLarge, at, "the files together unpack to more than the limit")
				return false
			}
			file.Content = content
			if isDocument(file.Path) {
				file.Document = docs.read(content)
			}
		}
		file.Secret = isSecretFile(file.Path, file.Content)
		out.Files = append(out.Files, file)
	}
	return true
}

func (out *Ignition) addUnits(units []ignitiontypes.Unit) {
	for i := range units {
		from := &units[i]
		unit := IgnitionUnit{Name: from.Name, Enabled: from.Enabled, Mask: from.Mask, Contents: from.Contents}
		if unit.Enabled == nil && from.Enable {
			unit.Enabled = &from.Enable // the older spelling
		}
		for _, dropin := range from.Dropins {
			unit.Dropins = append(unit.Dropins, IgnitionDropin{Name: dropin.Name, Contents: dropin.Contents})
		}
		out.Units = append(out.Units, unit)
	}
}

func (out *Ignition) addUsers(users []ignitiontypes.PasswdUser) {
	for i := range users {
		from := &users[i]
		user := IgnitionUser{Name: from.Name, UID: from.UID, Shell: from.Shell}
		for _, group := range from.Groups {
			user.Groups = append(user.Groups, string(group))
		}
		for _, key := range from.SSHAuthorizedKeys {
			user.SSHAuthorizedKeys = append(user.SSHAuthorizedKeys, string(key))
		}
		out.Users = append(out.Users, user)
	}
}

func value(number *int) int {
	if number == nil {
		return 0
	}
	return *number
}

func userName(user *ignitiontypes.NodeUser) string {
	if user == nil {
		return ""
	}
	return user.Name
}

func groupName(group *ignitiontypes.NodeGroup) string {
	if group == nil {
		return ""
	}
	return group.Name
}

// sourceAt returns contents.source of a file in the raw document.
func sourceAt(raw map[string]any, i int) (string, bool) {
	files, _ := valueAt(raw, "storage", "files").([]any)
	if i >= len(files) {
		return "", false
	}
	source, given := valueAt(files[i], "contents", "source").(string)
	return source, given
}

// decodeDataURL returns what a data URL holds.
func decodeDataURL(source string) ([]byte, error) {
	header, body, found := strings.Cut(strings.TrimPrefix(source, "data:"), ",")
	if !found {
		return nil, errors.New("data URL without a comma")
	}
	if strings.HasSuffix(header, ";base64") {
		if strings.IndexByte(body, '%') >= 0 {
			plain, err := url.PathUnescape(body)
			if err != nil {
				return nil, errors.New("data URL with an invalid escape sequence")
			}
			body = plain
		}
		data, err := base64.StdEncoding.DecodeString(body)
		if err != nil {
			return nil, errors.New("data URL with invalid base64")
		}
		return data, nil
	}
	text, err := url.PathUnescape(body)
	if err != nil {
		return nil, errors.New("data URL with an invalid escape sequence")
	}
	return []byte(text), nil
}

// withoutSecrets shows where a URL points without what may be secret in it.
func withoutSecrets(source string) string {
	u, err := url.Parse(source)
	if err != nil {
		return "an address that does not parse"
	}
	return u.Scheme + "://" + u.Host + u.Path
}

// isSecretFile tells files whose content must not be shown, by where they lie or by what they hold.
func isSecretFile(name string, content []byte) bool {
	base := path.Base(name)
	switch {
	case strings.HasSuffix(base, "-key") || strings.HasSuffix(base, "-key.pem") || strings.HasSuffix(base, ".key"):
		return true
	case strings.HasSuffix(name, "/.docker/config.json") || base == ".dockercfg" || base == ".dockerconfigjson":
		return true
	case strings.HasPrefix(name, "/etc/kubernetes/encryption/"):
		return true
	case base == "shadow" || base == "gshadow" || strings.HasPrefix(base, "id_rsa") || strings.HasPrefix(base, "id_ed25519"):
		return !strings.HasSuffix(base, ".pub")
	}
	return holdsSecret(content)
}

// holdsSecret tells content that carries a private key or credentials, wherever it lies.
func holdsSecret(content []byte) bool {
	for _, mark := range []string{
		"PRIVATE KEY-----", "client-key-data:", "EncryptionConfiguration", "\"auths\"", "\"client-key-data\"",
		"LS0tLS1CRUdJTiBSU0EgUFJJVkFURS", "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS", "LS0tLS1CRUdJTiBFQyBQUklWQVRFI", // the same marks in base64
	} {
		if bytes.Contains(content, []byte(mark)) {
			return true
		}
	}
	return false
}
