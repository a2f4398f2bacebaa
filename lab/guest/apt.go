package guest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// archive is a place to get Debian packages from.
type archive struct {
	URI        string
	Suites     []string
	Components []string
}

// readArchives finds the archives of a Debian release in a machine's apt configuration (/etc/apt): those whose suites are the release or
// one of its updates. The image is built from wherever this machine gets its own packages.
func readArchives(dir, suite string) ([]archive, error) {
	var all []archive
	paths, err := filepath.Glob(filepath.Join(dir, "sources.list.d", "*"))
	if err != nil {
		return nil, fmt.Errorf("reading apt's sources: %w", err)
	}
	for _, p := range append([]string{filepath.Join(dir, "sources.list")}, paths...) {
		raw, err := os.ReadFile(p)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading apt's sources: %w", err)
		}
		switch filepath.Ext(p) {
		case ".list":
			all = append(all, parseList(string(raw))...)
		case ".sources":
			all = append(all, parseStanzas(string(raw))...)
		}
	}
	var found []archive
	for _, a := range all {
		a.Suites = slices.DeleteFunc(a.Suites, func(s string) bool { return s != suite && !strings.HasPrefix(s, suite+"-") })
		if len(a.Suites) > 0 && slices.Contains(a.Components, "main") && strings.Contains(a.URI, "debian") {
			found = append(found, a)
		}
	}
	if !slices.ContainsFunc(found, func(a archive) bool { return slices.Contains(a.Suites, suite) }) {
		return nil, fmt.Errorf("%s names no archive of %s: %w; add one to apt's sources", dir, suite, fs.ErrNotExist)
	}
	return found, nil
}

// parseList reads the one-line format: deb [options] URI suite components.
func parseList(text string) []archive {
	var all []archive
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if _, rest, ok := strings.Cut(line, "["); ok {
			if _, after, ok := strings.Cut(rest, "]"); ok {
				line = "deb " + after
			}
		}
		f := strings.Fields(line)
		if len(f) >= 4 && f[0] == "deb" {
			all = append(all, archive{URI: f[1], Suites: []string{f[2]}, Components: f[3:]})
		}
	}
	return all
}

// parseStanzas reads the deb822 format.
func parseStanzas(text string) []archive {
	var all []archive
	for stanza := range strings.SplitSeq(text, "\n\n") {
		fields := map[string][]string{}
		for line := range strings.Lines(stanza) {
			if key, value, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, "#") {
				fields[strings.ToLower(strings.TrimSpace(key))] = strings.Fields(value)
			}
		}
		if !slices.Contains(fields["types"], "deb") || slices.Equal(fields["enabled"], []string{"no"}) {
			continue
		}
		for _, uri := range fields["uris"] {
			all = append(all, archive{URI: uri, Suites: slices.Clone(fields["suites"]), Components: fields["components"]})
		}
	}
	return all
}

// sourcesList writes the archives for the guest.
func sourcesList(archives []archive) string {
	var b strings.Builder
	for _, a := range archives {
		for _, s := range a.Suites {
			fmt.Fprintf(&b, "deb %s %s main\n", a.URI, s)
		}
	}
	return b.String()
}
