package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Image is what a container of an image consists of, besides the machine's system directories.
type Image struct {
	// Program is a file of the machine that appears at Path and is the image's entrypoint. Without it a container needs a command.
	Program string `json:"program,omitempty"`
	Path    string `json:"path,omitempty"`
	// Args are the arguments when the container gives neither command nor arguments.
	Args []string `json:"args,omitempty"`
	// Files appear at their key, read-only. Values are files or directories of the machine.
	Files map[string]string `json:"files,omitempty"`
	// Env of the image, which the container's overrides.
	Env map[string]string `json:"env,omitempty"`
	// WorkingDir of the image.
	WorkingDir string `json:"workingDir,omitempty"`
}

// ErrUnknown says that the map has no such image.
var ErrUnknown = errors.New("not in the image map")

// Map finds images in a file, which is read each time: images may be added while the host runs.
//
// The file is a JSON object. A key is the name of an image with tag or digest; or without, for every tag; or a prefix ending in "*".
// The most exact key wins, then the longest.
type Map struct{ Path string }

// Find returns an image.
func (m Map) Find(name string) (*Image, error) {
	raw, err := os.ReadFile(m.Path)
	if err != nil {
		return nil, fmt.Errorf("reading the image map: %w", err)
	}
	all := map[string]*Image{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&all); err != nil {
		return nil, fmt.Errorf("reading the image map: %w", err)
	}
	image := choose(all, name)
	if image == nil {
		return nil, fmt.Errorf("image %q: %w", name, ErrUnknown)
	}
	return image, image.check(name)
}

func choose(all map[string]*Image, name string) *Image {
	for _, key := range []string{name, untagged(name)} {
		if i := all[key]; i != nil {
			return i
		}
	}
	best := ""
	for key := range all {
		prefix, isPrefix := strings.CutSuffix(key, "*")
		if isPrefix && strings.HasPrefix(name, prefix) && len(key) > len(best) {
			best = key
		}
	}
	return all[best]
}

// check finds programs that are gone, for example because a cache was emptied.
func (i *Image) check(name string) error {
	if (i.Program == "") != (i.Path == "") {
		return fmt.Errorf("image %q: program and path belong together", name)
	}
	if i.Program != "" {
		if _, err := os.Stat(i.Program); err != nil {
			return fmt.Errorf("image %q: %w", name, err)
		}
	}
	for _, source := range i.Files {
		if _, err := os.Stat(source); err != nil {
			return fmt.Errorf("image %q: %w", name, err)
		}
	}
	return nil
}

// untagged takes tag and digest off a name; a colon before a slash is a registry's port.
func untagged(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name
}
