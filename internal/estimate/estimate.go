package estimate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/yamlerror"
)

// Worker is the kind of the steps that replace a worker: each of them is the same work, whatever the worker's id.
const Worker = plan.PhaseWorkers + "/*"

// settled is the one step of its phase that replaces nothing.
const settled = plan.PhaseWorkers + "/settled"

// KindOf is the kind of a step: its id, and for a worker's replacement [Worker].
func KindOf(step string) string {
	if plan.ReplacesWorker(step) {
		return Worker
	}
	return step
}

// Range is how long something takes: half of the times no longer than P50, nine of ten times no longer than P90.
type Range struct {
	P50, P90 time.Duration
	// Samples is how many times it was measured; zero for a built-in figure.
	Samples int
}

// Document keeps what was learnt, as a file.
type Document struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	// Clusters and Runs are how many of them something was learnt from.
	Clusters int `json:"clusters"`
	Runs     int `json:"runs"`
	// Steps are sorted by their name.
	Steps []Step `json:"steps"`
}

// Metadata says where a document comes from.
type Metadata struct {
	CreatedAt time.Time `json:"createdAt"`
	Tool      string    `json:"tool"`
}

// Step is what was learnt of one kind of step.
type Step struct {
	// Step is the id of a step, or workers/* for the replacement of a worker.
	Step string `json:"step"`
	// P50 and P90 are Go durations.
	P50 string `json:"p50"`
	P90 string `json:"p90"`
	// Samples is how many times it was measured.
	Samples int `json:"samples"`
}

// maxFile is far more than the estimates of every step.
const maxFile = 1 << 20

// KindError means that a file is something else.
type KindError struct {
	// Kind is what the file says it is; empty where it does not say.
	Kind string
}

func (e *KindError) Error() string {
	if e.Kind == "" {
		return "it is no Estimates document, and does not say what it is"
	}
	return fmt.Sprintf("it is no Estimates document, but of kind %q", e.Kind)
}

// Read reads a document, JSON or YAML, strictly. For a file that is something else the error is a [KindError], however large and however broken it is.
func Read(data []byte) (*Document, error) {
	d, err := read(data)
	if err == nil {
		return d, nil
	}
	if kind := kindOf(data); kind != migrationv1alpha1.KindEstimates {
		return nil, &KindError{kind}
	}
	return nil, err
}

func read(data []byte) (*Document, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("reading estimates: the file is larger than %d bytes", maxFile)
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("reading estimates: %w", yamlerror.Plain(err, data))
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	d := &Document{}
	if err := decoder.Decode(d); err != nil {
		return nil, fmt.Errorf("reading estimates: %w", plain(err))
	}
	// What turned YAML into JSON read the first document alone.
	documents, several := yamlv3.NewDecoder(bytes.NewReader(data)), yamlv3.Node{}
	if documents.Decode(&several) != nil || !errors.Is(documents.Decode(&several), io.EOF) {
		return nil, errors.New("reading estimates: only one document is allowed")
	}
	return d, d.check()
}

// plain says what the decoder of JSON says without its name and without the types of this program.
func plain(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	wanted, known := map[reflect.Kind]string{reflect.Int: "a whole number", reflect.Int64: "a whole number", reflect.Bool: "true or false", reflect.String: "text", reflect.Slice: "a list"}[wrong.Type.Kind()]
	if !known {
		wanted = "a mapping"
	}
	return fmt.Errorf("%s is of type %s; it must be %s", cmp.Or(wrong.Field, "the whole"), wrong.Value, wanted)
}

// kindOf is the kind that a file says it is of. A plan is much larger than estimates: whoever read it has stopped somewhere in the middle, so the lines above that must do.
func kindOf(data []byte) string {
	if kind, ok := kindInJSON(data); ok {
		return kind
	}
	if len(data) <= maxFile {
		if text, err := yaml.YAMLToJSON(data); err == nil {
			kind, _ := kindInJSON(text)
			return kind
		}
	}
	for line := range bytes.Lines(data) {
		if text, found := bytes.CutPrefix(line, []byte("kind:")); found {
			var kind string
			if yamlv3.Unmarshal(text, &kind) == nil {
				return kind
			}
		}
	}
	return ""
}

// kindInJSON is the kind of a JSON object, up to which it must be whole; false for what is no such object.
func kindInJSON(data []byte) (string, bool) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return "", false
	}
	for decoder.More() {
		key, err := decoder.Token()
		var value json.RawMessage
		if err != nil || decoder.Decode(&value) != nil {
			return "", false
		}
		var kind string
		if key == "kind" && json.Unmarshal(value, &kind) == nil {
			return kind, true
		}
	}
	return "", true
}

// check finds what the notation allows and the meaning does not.
func (d *Document) check() error {
	if d.APIVersion != migrationv1alpha1.APIVersion || d.Kind != migrationv1alpha1.KindEstimates {
		return fmt.Errorf("reading estimates: it is %s %s; it must be %s %s", d.APIVersion, d.Kind, migrationv1alpha1.APIVersion, migrationv1alpha1.KindEstimates)
	}
	seen := map[string]bool{}
	for i, s := range d.Steps {
		_, known := builtIn()[s.Step]
		switch _, err := s.span(); {
		case !known:
			return fmt.Errorf("reading estimates: steps[%d].step: there is no step %q", i, s.Step)
		case seen[s.Step]:
			return fmt.Errorf("reading estimates: steps[%d].step: %q is there twice", i, s.Step)
		case err != nil:
			return fmt.Errorf("reading estimates: steps[%d] (%s): %w", i, s.Step, err)
		}
		seen[s.Step] = true
	}
	return nil
}

// longest is longer than any step takes; sums of many stay far from what a number can hold.
const longest = 30 * 24 * time.Hour

// span reads the figures of a step.
func (s Step) span() (Range, error) {
	out := Range{Samples: s.Samples}
	for _, f := range []struct {
		name, text string
		to         *time.Duration
	}{{"p50", s.P50, &out.P50}, {"p90", s.P90, &out.P90}} {
		d, err := time.ParseDuration(f.text)
		if err != nil || d < 0 || d > longest {
			return out, fmt.Errorf("%s: %q is no length of time like 4m30s, up to %s", f.name, f.text, longest)
		}
		*f.to = d
	}
	switch {
	case out.P90 < out.P50:
		return out, fmt.Errorf("p90: %s is less than p50, %s", s.P90, s.P50)
	case s.Samples < 1:
		return out, fmt.Errorf("samples: it is %d; it must be at least 1", s.Samples)
	}
	return out, nil
}

// Estimates answer how long a step takes. The zero value answers with the built-in figures.
type Estimates struct {
	// Runs is how many runs they were learnt from; zero for none.
	Runs  int
	steps map[string]Range
}

// Of makes estimates of a document that [Read] or [Learn] has made; nil is a document that knows nothing.
func Of(d *Document) Estimates {
	if d == nil {
		return Estimates{}
	}
	e := Estimates{Runs: d.Runs, steps: map[string]Range{}}
	for _, s := range d.Steps {
		if r, err := s.span(); err == nil {
			e.steps[s.Step] = r
		}
	}
	return e
}

// Step is how long a step takes.
func (e Estimates) Step(id string) Range {
	kind := KindOf(id)
	if r, learnt := e.steps[kind]; learnt {
		return r
	}
	return builtIn()[kind]
}

// Sum is how long several steps take one after the other. The sum of what nine of ten stay below is more than what nine of ten sums stay below: it errs to
// the safe side. Samples are those of the step that was measured least.
func (e Estimates) Sum(ids ...string) Range {
	var out Range
	for i, id := range ids {
		r := e.Step(id)
		out.P50 += r.P50
		out.P90 += r.P90
		if i == 0 || r.Samples < out.Samples {
			out.Samples = r.Samples
		}
	}
	return out
}

// Kinds are all kinds of steps, sorted.
func Kinds() []string {
	kinds := make([]string, 0, len(builtIn()))
	for kind := range builtIn() {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return kinds
}

// growth makes more control planes, where somebody asks for them. Before it, a cluster can rest.
const growth = plan.PhaseControlPlane + "/grow"

// ControlPlane are the steps that replace the control plane, sorted; half of them is no place to rest.
func ControlPlane() []string {
	return slices.DeleteFunc(Kinds(), func(kind string) bool { return !strings.HasPrefix(kind, plan.PhaseControlPlane+"/") || kind == growth })
}

// BehindNoReturn are the steps from the point of no return to where a cluster can rest again. A test holds the list to the graph.
func BehindNoReturn() []string {
	return []string{"control-plane/leave", "control-plane/retire", "control-plane/unreach", "control-plane/recognize", "control-plane/hand-over", "control-plane/refer"}
}
