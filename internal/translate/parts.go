package translate

import (
	"bytes"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// part is a file, unit, user or other piece of an Ignition document that can be compared before it is read.
type part struct {
	name      string
	file      *legacy.IgnitionFile
	unit      *legacy.IgnitionUnit
	user      *legacy.IgnitionUser
	directory *legacy.IgnitionDirectory
	// raw is the value of one of the document's other fields, which lies below the two names.
	raw         any
	area, field string
	// index is the place in the list of files, units, users or directories.
	index int
}

// document is the Ignition document of a node.
type document struct {
	node *legacy.Node
	// parts are in the document's own order, or those of the first document of the role when both list the same.
	parts []part
	// own tells that the parts are the document's own.
	own bool
	// byName tells the place of each part.
	byName map[string]int
}

// documents returns the documents of all nodes of a role. Nodes are booted with the same list of parts as a rule, so the list is only
// made for the first and for those that differ.
func (m *memory) documents(cluster *legacy.Cluster, role legacy.Role) []document {
	out := make([]document, 0, len(cluster.Nodes))
	for i := range cluster.Nodes {
		node := &cluster.Nodes[i]
		if node.Role != role || node.Ignition == nil {
			continue
		}
		if len(out) > 0 && sameParts(out[0].node.Ignition, node.Ignition) {
			out = append(out, document{node: node, parts: out[0].parts, byName: out[0].byName})
			continue
		}
		d := document{node: node, parts: m.parts(node.Ignition), own: true}
		d.byName = make(map[string]int, len(d.parts))
		for place := range d.parts {
			if _, twice := d.byName[d.parts[place].name]; !twice {
				d.byName[d.parts[place].name] = place
			}
		}
		out = append(out, d)
	}
	return out
}

// find returns the part with a name.
func (d *document) find(name string) (part, bool) {
	place, ok := d.byName[name]
	if !ok {
		return part{}, false
	}
	return d.counterpart(d.parts[place]), true
}

// counterpart returns the document's part in the place of one that its list of parts has.
func (d *document) counterpart(p part) part {
	if d.own {
		return p
	}
	switch ignition := d.node.Ignition; {
	case p.file != nil:
		p.file = &ignition.Files[p.index]
	case p.unit != nil:
		p.unit = &ignition.Units[p.index]
	case p.user != nil:
		p.user = &ignition.Users[p.index]
	case p.directory != nil:
		p.directory = &ignition.Directories[p.index]
	default:
		p.raw = rawField(ignition, p.area, p.field)
	}
	return p
}

// rawField returns a field of the document as it was read: of an area that has other fields, or a whole area.
func rawField(ignition *legacy.Ignition, area, field string) any {
	if field == "" {
		return ignition.Raw[area]
	}
	document, _ := ignition.Raw[area].(map[string]any)
	return document[field]
}

// sameParts tells whether two documents list parts of the same names in the same order.
func sameParts(a, b *legacy.Ignition) bool {
	same := sameNames(a.Files, b.Files, func(f *legacy.IgnitionFile) string { return f.Path }) &&
		sameNames(a.Directories, b.Directories, func(d *legacy.IgnitionDirectory) string { return d.Path }) &&
		sameNames(a.Units, b.Units, func(u *legacy.IgnitionUnit) string { return u.Name }) &&
		sameNames(a.Users, b.Users, func(u *legacy.IgnitionUser) string { return u.Name })
	return same && sameFields(a.Raw, b.Raw, "") && sameFields(a.Raw, b.Raw, "passwd") && sameFields(a.Raw, b.Raw, "storage") && sameFields(a.Raw, b.Raw, "systemd")
}

// sameNames tells whether two lists have items of the same names in the same order.
func sameNames[T any](a, b []T, name func(*T) string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if name(&a[i]) != name(&b[i]) {
			return false
		}
	}
	return true
}

// sameFields tells whether an area of two documents, or the documents themselves, have the same fields.
func sameFields(a, b map[string]any, area string) bool {
	if area != "" {
		a, _ = a[area].(map[string]any)
		b, _ = b[area].(map[string]any)
	}
	return maps.EqualFunc(a, b, func(any, any) bool { return true })
}

// parts lists the parts of a document in its own order.
func (m *memory) parts(ignition *legacy.Ignition) []part {
	out := make([]part, 0, len(ignition.Files)+len(ignition.Directories)+len(ignition.Units)+len(ignition.Users)+8)
	for i := range ignition.Files {
		out = append(out, part{name: m.join("file:", ignition.Files[i].Path), file: &ignition.Files[i], index: i})
	}
	for i := range ignition.Directories {
		out = append(out, part{name: m.join("directory:", ignition.Directories[i].Path), directory: &ignition.Directories[i], index: i})
	}
	for i := range ignition.Units {
		out = append(out, part{name: m.join("unit:", ignition.Units[i].Name), unit: &ignition.Units[i], index: i})
	}
	for i := range ignition.Users {
		out = append(out, part{name: m.join("user:", ignition.Users[i].Name), user: &ignition.Users[i], index: i})
	}
	for _, name := range sortedKeys(ignition.Raw) {
		switch name {
		case "passwd", "storage", "systemd":
			document, _ := ignition.Raw[name].(map[string]any)
			for _, below := range sortedKeys(document) {
				if !slices.Contains([]string{"users", "files", "directories", "units"}, below) {
					out = append(out, part{name: "document:" + name + "." + below, area: name, field: below, raw: document[below]})
				}
			}
		default:
			out = append(out, part{name: "document:" + name, area: name, raw: ignition.Raw[name]})
		}
	}
	return out
}

func (p part) equal(other part) bool {
	switch {
	case p.file != nil && other.file != nil:
		return p.file.Secret == other.file.Secret && bytes.Equal(p.file.Content, other.file.Content)
	case p.unit != nil && other.unit != nil:
		return unitText(p.unit) == unitText(other.unit) && slices.Equal(p.unit.Dropins, other.unit.Dropins)
	case p.user != nil && other.user != nil:
		return p.user.Shell == other.user.Shell && slices.Equal(p.user.Groups, other.user.Groups) && slices.Equal(p.user.SSHAuthorizedKeys, other.user.SSHAuthorizedKeys)
	case p.directory != nil && other.directory != nil:
		return *p.directory == *other.directory
	}
	return reflect.DeepEqual(p.raw, other.raw)
}

// partReader takes parts apart.
type partReader struct {
	memory *memory
	// single holds the settings of a part that is one setting.
	single [1]setting
}

// settingsOf takes a part apart. Files whose content is configuration are read setting by setting, so that a single new flag is
// seen; all others are one setting.
func (r *partReader) settingsOf(p part) []setting {
	switch {
	case p.file != nil:
		if settings := r.file(p.file); settings != nil {
			return settings
		}
		return r.one(p.name, string(p.file.Content), p.file.Secret)
	case p.unit != nil:
		out := r.unit(p.unit)
		if out == nil {
			out = r.one(p.name, unitText(p.unit), false)
		}
		for _, dropin := range p.unit.Dropins {
			out = append(out, r.dropin(p.unit.Name, dropin)...)
		}
		return out
	case p.user != nil:
		out := make([]setting, 0, 2+len(p.user.Groups)+len(p.user.SSHAuthorizedKeys))
		if p.user.UID != nil {
			out = append(out, setting{p.name + "#uid", int64(*p.user.UID), false})
		}
		for i, group := range p.user.Groups {
			out = append(out, setting{at(p.name+"#groups", i, ""), group, false})
		}
		out = append(out, setting{p.name + "#shell", p.user.Shell, false})
		for i, sshKey := range p.user.SSHAuthorizedKeys {
			out = append(out, setting{at(p.name+"#sshAuthorizedKeys", i, ""), sshKey, false})
		}
		return out
	case p.directory != nil:
		return r.one(p.name, "mode "+strconv.FormatInt(int64(p.directory.Mode), 8), false)
	}
	var out []setting
	walk(p.name, p.raw, func(path string, value any) { out = append(out, setting{path, value, false}) })
	return out
}

// one is the settings of a part that is not taken apart. They are valid until the next call.
func (r *partReader) one(path string, value any, secret bool) []setting {
	r.single[0] = setting{path, value, secret}
	return r.single[:]
}
