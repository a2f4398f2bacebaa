package fleet

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/invopop/jsonschema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
)

// Kind of the document.
const Kind = "Fleet"

// Fleet says in which waves the clusters of a management cluster are migrated.
type Fleet struct {
	// APIVersion is migration.giantswarm.io/v1alpha1, Kind is Fleet.
	APIVersion string   `yaml:"apiVersion" json:"apiVersion"`
	Kind       string   `yaml:"kind" json:"kind"`
	Metadata   Metadata `yaml:"metadata,omitempty" json:"metadata,omitzero"`
	Spec       Spec     `yaml:"spec" json:"spec"`
}

// Metadata names a fleet, and what is kept of it in the management cluster.
type Metadata struct {
	Name      string `yaml:"name" json:"name" jsonschema:"pattern=^[a-z0-9]([-a-z0-9]*[a-z0-9])?$,maxLength=40" jsonschema_description:"Name of the fleet, a DNS label; its record and its lock in the management cluster are named after it."`
	Namespace string `yaml:"namespace,omitempty" json:"namespace,omitempty" jsonschema_description:"Namespace of record and lock; default when it is left out."`
}

// Spec is what a fleet says.
type Spec struct {
	Description string   `yaml:"description,omitempty" json:"description,omitempty" jsonschema_description:"What was agreed, and where."`
	Playbooks   []string `yaml:"playbooks,omitempty" json:"playbooks,omitempty" jsonschema_description:"Files with the playbook of every cluster, the general one first; relative to this file."`
	Limits      Limits   `yaml:"limits,omitempty" json:"limits,omitzero" jsonschema_description:"How much happens at once."`
	Hold        Policy   `yaml:"hold,omitempty" json:"hold,omitzero" jsonschema_description:"When the fleet stops by itself."`
	Assume      Assume   `yaml:"assume,omitempty" json:"assume,omitzero" jsonschema_description:"How long something is taken to last as long as no run has been measured; only for the forecast."`
	Waves       []Wave   `yaml:"waves" json:"waves" jsonschema:"minItems=1" jsonschema_description:"One after the other, in this order."`
}

// Limits across clusters.
type Limits struct {
	Clusters        int `yaml:"clusters,omitempty" json:"clusters,omitempty" jsonschema:"minimum=1,maximum=100" jsonschema_description:"How many clusters of the management cluster are worked on at once; 1 when it is left out."`
	PerOrganization int `yaml:"perOrganization,omitempty" json:"perOrganization,omitempty" jsonschema:"minimum=0,maximum=100" jsonschema_description:"How many of them may belong to one organization; 0 for no limit."`
	Unfinished      int `yaml:"unfinished,omitempty" json:"unfinished,omitempty" jsonschema:"minimum=0,maximum=1000" jsonschema_description:"How many clusters of a wave may be begun and not done, also those that wait for their next window; 0 for no limit."`
}

// Policy says when a fleet stops by itself.
type Policy struct {
	SameFailure int `yaml:"sameFailure,omitempty" json:"sameFailure,omitempty" jsonschema:"minimum=1,maximum=100" jsonschema_description:"How often the same may go wrong before nothing begins any more; 2 when it is left out."`
}

// Assume says how long something lasts, as far as nobody measured it.
type Assume struct {
	Adopt        playbook.Duration `yaml:"adopt,omitempty" json:"adopt,omitempty" jsonschema_description:"Phases fence, translate and adopt together; 10m when it is left out."`
	ControlPlane playbook.Duration `yaml:"controlPlane,omitempty" json:"controlPlane,omitempty" jsonschema_description:"Phase control-plane; 2h when it is left out."`
	Worker       playbook.Duration `yaml:"worker,omitempty" json:"worker,omitempty" jsonschema_description:"One worker; 45m when it is left out."`
	Finalize     playbook.Duration `yaml:"finalize,omitempty" json:"finalize,omitempty" jsonschema_description:"Phase finalize; 15m when it is left out."`
}

// Wave is a part of the fleet.
type Wave struct {
	Name        string            `yaml:"name" json:"name" jsonschema_description:"Name, for people."`
	Clusters    Selection         `yaml:"clusters" json:"clusters" jsonschema_description:"Which clusters belong to it."`
	Canary      string            `yaml:"canary,omitempty" json:"canary,omitempty" jsonschema_description:"Id of the cluster of the wave that goes first, alone."`
	Until       string            `yaml:"until" json:"until" jsonschema:"enum=fence,enum=translate,enum=adopt,enum=control-plane,enum=workers,enum=finalize" jsonschema_description:"The phase after which the wave is done."`
	Playbooks   []string          `yaml:"playbooks,omitempty" json:"playbooks,omitempty" jsonschema_description:"Files that lie over the playbooks of every cluster; relative to this file."`
	AfterCanary playbook.Duration `yaml:"afterCanary,omitempty" json:"afterCanary,omitempty" jsonschema_description:"How long the others wait when the canary is done."`
	Soak        playbook.Duration `yaml:"soak,omitempty" json:"soak,omitempty" jsonschema_description:"How long the next wave waits when this one is done."`
}

// Selection says which clusters are meant: those that are named, and those that have the organization and the labels.
type Selection struct {
	All           bool              `yaml:"all,omitempty" json:"all,omitempty" jsonschema_description:"Every cluster of the management cluster."`
	Names         []string          `yaml:"names,omitempty" json:"names,omitempty" jsonschema_description:"Ids of clusters, in this order."`
	Organizations []string          `yaml:"organizations,omitempty" json:"organizations,omitempty" jsonschema_description:"Clusters of these organizations, in the order of their ids."`
	Selector      playbook.Selector `yaml:"selector,omitempty" json:"selector,omitempty" jsonschema_description:"Clusters whose KVMConfig has these labels, for example giantswarm.io/region=eu; with organizations, both must hold."`
	Exclude       []string          `yaml:"exclude,omitempty" json:"exclude,omitempty" jsonschema_description:"Ids of clusters that do not belong to it all the same."`
}

// Phases are those that a wave can end with, in their order.
func Phases() []string {
	return []string{plan.PhaseFence, plan.PhaseTranslate, plan.PhaseAdopt, plan.PhaseControlPlane, plan.PhaseWorkers, plan.PhaseFinalize}
}

// Schema is the JSON Schema of a fleet, from the types themselves.
func Schema() *jsonschema.Schema { return playbook.SchemaOf(&Fleet{}, Kind) }

// What holds where nobody says anything.
const (
	builtInNamespace    = "default"
	builtInClusters     = 1
	builtInSameFailure  = 2
	builtInAdopt        = playbook.Duration(10 * time.Minute)
	builtInControlPlane = playbook.Duration(2 * time.Hour)
	builtInWorker       = playbook.Duration(45 * time.Minute)
	builtInFinalize     = playbook.Duration(15 * time.Minute)
)

// Read reads a fleet, strictly: every mistake is reported with its place, as a playbook.InvalidError.
func Read(suggest playbook.Suggest, layer playbook.Layer) (*Fleet, error) {
	f := &Fleet{
		Metadata: Metadata{Namespace: builtInNamespace},
		Spec: Spec{
			Limits: Limits{Clusters: builtInClusters}, Hold: Policy{SameFailure: builtInSameFailure},
			Assume: Assume{Adopt: builtInAdopt, ControlPlane: builtInControlPlane, Worker: builtInWorker, Finalize: builtInFinalize},
		},
	}
	if err := playbook.ReadDocument(suggest, Kind, f, layer, f.problems); err != nil {
		return nil, err
	}
	return f, nil
}

// Bounds that nobody who knows what they do comes near to.
const (
	mostWaves    = 200
	mostAtOnce   = 100
	longestName  = 40
	mostSameTime = 1000
)

// problems are what is wrong with the fleet as a whole.
func (f *Fleet) problems() []playbook.Problem {
	var out []playbook.Problem
	add := func(path, format string, args ...any) {
		out = append(out, playbook.Problem{Path: path, Text: fmt.Sprintf(format, args...)})
	}
	for path, name := range map[string]string{"metadata.name": f.Metadata.Name, "metadata.namespace": f.Metadata.Namespace} {
		if !isLabel(name) {
			add(path, "it is %q; it must be a DNS label of at most %d characters", name, longestName)
		}
	}
	for path, within := range map[string]bool{
		"spec.limits.clusters": inside(f.Spec.Limits.Clusters, 1, mostAtOnce), "spec.limits.perOrganization": inside(f.Spec.Limits.PerOrganization, 0, mostAtOnce),
		"spec.limits.unfinished": inside(f.Spec.Limits.Unfinished, 0, mostSameTime), "spec.hold.sameFailure": inside(f.Spec.Hold.SameFailure, 1, mostAtOnce),
	} {
		if !within {
			add(path, "that number is not possible; migrate fleet schema says which are")
		}
	}
	for path, lasts := range map[string]playbook.Duration{
		"spec.assume.adopt": f.Spec.Assume.Adopt, "spec.assume.controlPlane": f.Spec.Assume.ControlPlane,
		"spec.assume.worker": f.Spec.Assume.Worker, "spec.assume.finalize": f.Spec.Assume.Finalize,
	} {
		if lasts <= 0 {
			add(path, "nothing is done in no time")
		}
	}
	out = append(out, emptyNames("spec.playbooks", f.Spec.Playbooks)...)
	if n := len(f.Spec.Waves); n == 0 || n > mostWaves {
		add("spec.waves", "there are %d waves; there can be 1 to %d", n, mostWaves)
		return out
	}
	names := map[string]bool{}
	for i := range f.Spec.Waves {
		wave := &f.Spec.Waves[i]
		path := fmt.Sprintf("spec.waves[%d]", i)
		if names[wave.Name] {
			add(path+".name", "another wave is called %q, too", wave.Name)
		}
		names[wave.Name] = true
		out = append(out, wave.problems(path)...)
	}
	slices.SortFunc(out, func(a, b playbook.Problem) int { return strings.Compare(a.Path, b.Path) })
	return out
}

func inside(n, least, most int) bool { return n >= least && n <= most }

// problems are what is wrong with one wave.
func (w *Wave) problems(path string) []playbook.Problem {
	var out []playbook.Problem
	add := func(key, format string, args ...any) {
		out = append(out, playbook.Problem{Path: path + key, Text: fmt.Sprintf(format, args...)})
	}
	if strings.TrimSpace(w.Name) == "" {
		add(".name", "it is missing")
	}
	if !slices.Contains(Phases(), w.Until) {
		add(".until", "it is %q; it can be %s", w.Until, strings.Join(Phases(), ", "))
	}
	c := &w.Clusters
	if !c.All && len(c.Names)+len(c.Organizations)+len(c.Selector) == 0 {
		add(".clusters", "it selects nothing: it needs names, organizations, selector, or all")
	}
	if c.All && len(c.Organizations)+len(c.Selector) > 0 {
		add(".clusters.all", "all and organizations or selector contradict each other")
	}
	for i, id := range c.Names {
		if slices.Contains(c.Names[:i], id) {
			add(fmt.Sprintf(".clusters.names[%d]", i), "cluster %s is named twice", id)
		}
		if slices.Contains(c.Exclude, id) {
			add(fmt.Sprintf(".clusters.names[%d]", i), "cluster %s is named and excluded", id)
		}
	}
	if w.Canary == "" && w.AfterCanary > 0 {
		add(".afterCanary", "there is no canary to wait for")
	}
	if w.Canary != "" && slices.Contains(c.Exclude, w.Canary) {
		add(".canary", "cluster %s is excluded", w.Canary)
	}
	for key, list := range map[string][]string{".clusters.names": c.Names, ".clusters.organizations": c.Organizations, ".clusters.exclude": c.Exclude, ".playbooks": w.Playbooks} {
		out = append(out, emptyNames(path+key, list)...)
	}
	return out
}

func emptyNames(path string, list []string) []playbook.Problem {
	var out []playbook.Problem
	for i, name := range list {
		if strings.TrimSpace(name) == "" {
			out = append(out, playbook.Problem{Path: fmt.Sprintf("%s[%d]", path, i), Text: "it is empty"})
		}
	}
	return out
}

// isLabel tells that a name can be part of an object's name.
func isLabel(name string) bool {
	return len(name) <= longestName && len(validation.IsDNS1123Label(name)) == 0
}

// Doubts are what is allowed and most likely not meant: waves for which an earlier one leaves nothing to do, as far as the file alone can tell.
func (f *Fleet) Doubts() []string {
	var out []string
	for i := range f.Spec.Waves {
		later := &f.Spec.Waves[i]
		for j := range f.Spec.Waves[:i] {
			earlier := &f.Spec.Waves[j]
			if slices.Index(Phases(), earlier.Until) >= slices.Index(Phases(), later.Until) && earlier.Clusters.covers(&later.Clusters) {
				out = append(out, fmt.Sprintf("wave %s: it has nothing to do: wave %s takes all of its clusters until %s", later.Name, earlier.Name, earlier.Until))
				break
			}
		}
	}
	return out
}

// covers tells that a selection has every cluster of another one, whatever clusters there are. One by organizations or labels covers only its like.
func (s *Selection) covers(other *Selection) bool {
	if reflect.DeepEqual(s, other) {
		return true
	}
	named := len(other.Names) > 0 && !other.All && len(other.Organizations)+len(other.Selector) == 0
	return s.All && len(s.Exclude) == 0 || named && !slices.ContainsFunc(other.Names, func(id string) bool {
		return !slices.Contains(s.Names, id) && (!s.All || slices.Contains(s.Exclude, id))
	})
}
