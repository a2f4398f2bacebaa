package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// clusterPlaceholder stands for the cluster's id in names of files.
const clusterPlaceholder = "{cluster}"

// output is one place a document goes to, in one format. Without a file it is standard output.
type output struct {
	format, file string
	// from is the variable or the file that names it; empty where the command line does.
	from string
}

// outputs is the flag -o.
type outputs []output

var (
	_ pflag.Value      = &outputs{}
	_ pflag.SliceValue = &outputs{}
)

// Set adds one or several, separated by commas.
func (o *outputs) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		format, file, hasFile := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case format == "":
			return errors.New("the format is missing")
		case hasFile && file == "":
			return fmt.Errorf("the file for %s is missing", format)
		case file == "-":
			file = ""
		}
		*o = append(*o, output{format: format, file: file})
	}
	return nil
}

// Type is shown in help texts.
func (*outputs) Type() string { return "FORMAT[=FILE]" }

func (o *outputs) String() string { return strings.Join(o.GetSlice(), ",") }

// Append adds one.
func (o *outputs) Append(text string) error { return o.Set(text) }

// Replace sets the whole list.
func (o *outputs) Replace(texts []string) error {
	*o = nil
	for _, text := range texts {
		if err := o.Set(text); err != nil {
			return err
		}
	}
	return nil
}

// GetSlice returns the list the way it was typed.
func (o *outputs) GetSlice() []string {
	var texts []string
	for _, out := range *o {
		if out.file == "" {
			texts = append(texts, out.format)
		} else {
			texts = append(texts, out.format+"="+out.file)
		}
	}
	return texts
}

// cameFrom says which variable or file they are from.
func (o *outputs) cameFrom(where string) {
	for i := range *o {
		(*o)[i].from = where
	}
}

// typed are those that the command line names.
func (o *outputs) typed() outputs {
	return slices.DeleteFunc(slices.Clone(*o), func(out output) bool { return out.from != "" })
}

// resolved returns where the answer goes: to standard output as text when nothing was asked for. It refuses formats that do not
// exist, two answers on standard output, and two in one file, before any work is done. Environment and configuration file speak to
// all commands: what they name and this one has not is left out.
func (o *outputs) resolved(formats []string) ([]output, error) {
	var wanted []output
	places := map[string]bool{}
	for _, out := range *o {
		if !slices.Contains(formats, out.format) {
			if out.from != "" {
				continue
			}
			return nil, usage("use one of: "+strings.Join(formats, ", "), "there is no format %q here%s", out.format, didYouMean(out.format, formats))
		}
		place := out.file
		if place != "" {
			place = filepath.Clean(place)
		}
		if places[place] {
			return nil, out.taken()
		}
		places[place] = true
		wanted = append(wanted, out)
	}
	if len(wanted) == 0 {
		return []output{{format: formats[0]}}, nil
	}
	return wanted, nil
}

// taken refuses a second answer in one place.
func (out output) taken() error {
	origin := ""
	if out.from != "" {
		origin = out.from + ": "
	}
	if out.file == "" {
		return usage("give all but one a file: -o json=FILE", "%sonly one format can go to standard output", origin)
	}
	return usage("", "%sfile %s is named twice", origin, out.file)
}

// printed is the flag -o of commands that only print: one format, and no file.
type printed struct{ outputs }

// Type is shown in help texts.
func (*printed) Type() string { return "FORMAT" }

// format returns the only one. A file that environment or configuration file names is for other commands.
func (p *printed) format(formats []string) (string, error) {
	wanted := slices.DeleteFunc(slices.Clone(p.outputs), func(out output) bool { return out.from != "" && out.file != "" })
	outs, err := wanted.resolved(formats)
	if err != nil {
		return "", err
	}
	for _, out := range outs {
		if out.file != "" {
			return "", usage("-o "+out.format+" >"+shellescape.Quote(out.file), "file %s cannot be named here: the answer goes to standard output", out.file)
		}
	}
	return outs[0].format, nil
}

// forCluster puts a cluster's id into the names of files. An id that is more than a name could lead anywhere.
func forCluster(name, id string) (string, error) {
	if !strings.Contains(name, clusterPlaceholder) {
		return name, nil
	}
	if problems := validation.IsDNS1123Label(id); len(problems) > 0 {
		return "", fmt.Errorf("naming a file after cluster %q: the id is no DNS label", id)
	}
	return strings.ReplaceAll(name, clusterPlaceholder, id), nil
}

// checkFolders refuses files whose folder does not exist before any work is done. Folders are not made: a typing mistake would make one.
func checkFolders(files ...string) error {
	for _, file := range files {
		if file == "" {
			continue
		}
		folder := filepath.Dir(file)
		info, err := os.Stat(folder)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return usage("mkdir -p "+shellescape.Quote(folder), "writing %s: the folder %s does not exist", file, folder)
		case err != nil:
			return fmt.Errorf("writing %s: %w", file, err)
		case !info.IsDir():
			return usage("", "writing %s: %s is no folder", file, folder)
		}
		if info, err := os.Stat(file); err == nil && info.IsDir() {
			return usage("", "writing %s: it is a folder", file)
		}
	}
	return nil
}

// deliver renders into memory first, then writes the files, then standard output: an error or Ctrl-C before that leaves nothing behind.
func deliver(ctx context.Context, stdout io.Writer, outs []output, render func(w io.Writer, out output) error) error {
	rendered := make([]bytes.Buffer, len(outs))
	for i, out := range outs {
		if err := render(&rendered[i], out); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for i, out := range outs {
		if out.file == "" {
			continue
		}
		if err := writeFile(out.file, rendered[i].Bytes()); err != nil {
			return err
		}
	}
	for i, out := range outs {
		if out.file != "" {
			continue
		}
		if _, err := rendered[i].WriteTo(stdout); err != nil {
			return fmt.Errorf("writing to standard output: %w", err)
		}
	}
	return nil
}

// writeFile writes beside the target and renames, so that a reader sees the old contents or the new ones, never a part. Pipes and
// devices are written to directly; a link stays one.
func writeFile(name string, data []byte) error {
	target := name
	if resolved, err := filepath.EvalSymlinks(name); err == nil {
		target = resolved
	}
	if info, err := os.Stat(target); err == nil && !info.Mode().IsRegular() {
		if err := os.WriteFile(target, data, 0o600); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
		return nil
	}
	work := filepath.Join(filepath.Dir(target), "."+filepath.Base(target)+".tmp-"+randomName())
	// Reports are meant to be passed on: the umask decides who may read them.
	file, err := os.OpenFile(work, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666) //nolint:gosec // G302: see above
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(work, target)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, errors.Join(err, os.Remove(work)))
	}
	return nil
}

func randomName() string {
	var bytes [6]byte
	_, _ = rand.Read(bytes[:]) // never fails
	return hex.EncodeToString(bytes[:])
}

// patient is standard output. A reader that has seen enough (`migrate … | head`) is no error, and must not keep files from being
// written: from then on everything goes nowhere.
type patient struct {
	w    io.Writer
	gone bool
}

func (p *patient) Write(data []byte) (int, error) {
	if p.gone {
		return len(data), nil
	}
	n, err := p.w.Write(data)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		p.gone = true
		return len(data), nil
	}
	return n, err
}

// serial is standard error. The runs of several clusters, the fleet and its log write to it at the same time, and no writer has to bear that.
type serial struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *serial) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(data)
}
