package migrationtest

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// State is everything that exists of a cluster at one moment: objects as YAML
// by "management Kind/namespace/name" and "workload Kind/name". What differs
// from one look to the next without anybody having done anything is left out or
// masked: versions, times, generations, field managers. Uids are replaced by
// what they belong to, values of Secrets by their length and digest.
type State struct {
	Objects map[string]string

	content map[string]map[string]any
	names   *strings.Replacer
}

// unstable are kinds whose objects come and go by themselves.
func unstable(kind string) bool {
	return slices.Contains([]string{"Event", "Lease", "ComponentStatus", "PodMetrics", "NodeMetrics"}, kind)
}

// State looks at everything of the cluster: in the management cluster all
// objects of any kind in its own namespace, and elsewhere those that carry its
// id in their name, a label or the reference to a claim, with their namespace;
// in the workload cluster the Nodes.
func (c *Cluster) State(tb testing.TB) State {
	tb.Helper()
	s := State{Objects: map[string]string{}, content: map[string]map[string]any{}, names: c.replacer(tb)}
	objects, err := everything(tb.Context(), c.world.Management.Config())
	require.NoError(tb, err)
	mine := slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return !c.owns(o) })
	require.NoError(tb, s.add("management", mine))
	if c.Workload != nil {
		nodes := &unstructured.UnstructuredList{}
		nodes.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "NodeList"})
		inside, err := client.New(c.Inside(tb, "looker", "system:masters"), client.Options{Scheme: c.world.Client.Scheme()})
		require.NoError(tb, err)
		require.NoError(tb, inside.List(tb.Context(), nodes))
		require.NoError(tb, s.add("workload", pointers(nodes.Items)))
	}
	return s
}

func pointers(items []unstructured.Unstructured) []*unstructured.Unstructured {
	all := make([]*unstructured.Unstructured, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return all
}

// owns says whether an object belongs to the cluster.
func (c *Cluster) owns(o *unstructured.Unstructured) bool {
	if o.GetName() == "kube-root-ca.crt" {
		return false // The management cluster's, in every namespace.
	}
	if o.GetNamespace() == c.ID || c.has(o) || (o.GetKind() == "Namespace" && o.GetName() == c.Namespace) {
		return true
	}
	claim, _, err := unstructured.NestedString(o.Object, "spec", "claimRef", "namespace")
	return err == nil && claim == c.ID
}

// has tells of an object that says by its name or a label whose it is.
func (c *Cluster) has(o metav1.Object) bool {
	return strings.Contains(o.GetName(), c.ID) || slices.Contains(slices.Collect(maps.Values(o.GetLabels())), c.ID)
}

// everything lists all objects of all kinds.
func everything(ctx context.Context, config *rest.Config) ([]*unstructured.Unstructured, error) {
	config = rest.CopyConfig(config)
	config.WarningHandlerWithContext = rest.NoWarnings{}
	found, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a discovery client: %w", err)
	}
	lists, err := found.ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("asking for the kinds there are: %w", err)
	}
	ask, err := newLister(config)
	if err != nil {
		return nil, err
	}
	var (
		mu      sync.Mutex
		objects []*unstructured.Unstructured
		first   error
		wg      sync.WaitGroup
	)
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("reading the kinds there are: %w", err)
		}
		for _, r := range list.APIResources {
			if unstable(r.Kind) || !slices.Contains(r.Verbs, "list") {
				continue
			}
			wg.Go(func() {
				all, err := ask.list(ctx, version, r)
				mu.Lock()
				defer mu.Unlock()
				if apierrors.IsNotFound(err) {
					return // The kind has gone since.
				}
				if err != nil {
					first = fmt.Errorf("listing %s: %w", r.Name, err)
					return
				}
				objects = append(objects, all...)
			})
		}
	}
	wg.Wait()
	return objects, first
}

// lister lists objects of any kind.
type lister struct {
	full  dynamic.Interface
	heads metadata.Interface
}

func newLister(config *rest.Config) (l lister, err error) {
	if l.full, err = dynamic.NewForConfig(config); err == nil {
		l.heads, err = metadata.NewForConfig(config)
	}
	if err != nil {
		return l, fmt.Errorf("making a client: %w", err)
	}
	return l, nil
}

// list returns the objects of a kind; of definitions of kinds only the metadata: their
// schemas are megabytes, and no cluster's.
func (l lister) list(ctx context.Context, version schema.GroupVersion, r metav1.APIResource) ([]*unstructured.Unstructured, error) {
	resource := version.WithResource(r.Name)
	if r.Kind != "CustomResourceDefinition" {
		all, err := l.full.Resource(resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		return pointers(all.Items), nil
	}
	all, err := l.heads.Resource(resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	objects := make([]*unstructured.Unstructured, len(all.Items))
	for i := range all.Items {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&all.Items[i])
		if err != nil {
			return nil, err
		}
		objects[i] = &unstructured.Unstructured{Object: content}
		objects[i].SetGroupVersionKind(version.WithKind(r.Kind))
	}
	return objects, nil
}

func (s State) add(side string, objects []*unstructured.Unstructured) error {
	uids := map[string]string{}
	for _, o := range objects {
		uids[string(o.GetUID())] = "uid of " + key(o)
	}
	for _, o := range objects {
		n := normalizer{uids: uids, secret: o.GetKind() == "Secret"}
		content, ok := n.value(stable(o)).(map[string]any)
		if !ok {
			return fmt.Errorf("normalizing %s: it is no object", key(o))
		}
		text, err := yaml.Marshal(content)
		if err != nil {
			return fmt.Errorf("encoding %s: %w", key(o), err)
		}
		name := side + " " + key(o)
		if _, taken := s.Objects[name]; taken {
			// Two objects with generated names: both count.
			name += fmt.Sprintf(" %.4x", sha256.Sum256(text))
		}
		s.Objects[name], s.content[name] = string(text), content
	}
	return nil
}

// key names an object. Of a name that the server makes up, the fixed part counts,
// except for pods: theirs are the names of Nodes, too.
func key(o *unstructured.Unstructured) string {
	name := o.GetName()
	if prefix := o.GetGenerateName(); prefix != "" && o.GetKind() != "Pod" {
		name = prefix + "*"
	}
	kind := o.GetKind()
	if group := o.GroupVersionKind().Group; strings.Contains(group, "giantswarm.io") || strings.Contains(group, "x-k8s.io") {
		kind += "." + group
	}
	if o.GetNamespace() == "" {
		return kind + "/" + name
	}
	return kind + "/" + o.GetNamespace() + "/" + name
}

// stable returns the content without what the server counts.
func stable(o *unstructured.Unstructured) map[string]any {
	content := o.DeepCopy().Object
	if metadata, ok := content["metadata"].(map[string]any); ok {
		for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"} {
			delete(metadata, field)
		}
		if o.GetGenerateName() != "" && o.GetKind() != "Pod" {
			delete(metadata, "name")
		}
	}
	return content
}

// normalizer masks what is volatile.
type normalizer struct {
	uids   map[string]string
	secret bool
}

func (n normalizer) value(v any) any {
	switch x := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(x))
		for k, inner := range x {
			if k == "observedGeneration" || k == "resourceVersion" {
				continue
			}
			if n.secret && k == "data" {
				out[k] = digests(inner)
				continue
			}
			out[k] = n.value(inner)
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i := range x {
			out[i] = n.value(x[i])
		}
		return out
	case string:
		return n.text(x)
	default:
		return v
	}
}

func (n normalizer) text(text string) string {
	if owner, ok := n.uids[text]; ok {
		return "<" + owner + ">"
	}
	if _, err := time.Parse(time.RFC3339, text); err == nil {
		return "<time>"
	}
	if len(text) > longText {
		return fmt.Sprintf("<%d bytes, sha256 %.4x>", len(text), sha256.Sum256([]byte(text)))
	}
	// Uids inside annotations and messages.
	return uuid.ReplaceAllStringFunc(text, func(uid string) string {
		if owner, ok := n.uids[uid]; ok {
			return "<" + owner + ">"
		}
		return uid
	})
}

// longText is what nobody reads in a difference: boot configuration.
const longText = 8 << 10

func digests(data any) any {
	values, ok := data.(map[string]any)
	if !ok {
		return data
	}
	out := make(map[string]any, len(values))
	for k, v := range values {
		text, _ := v.(string)
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			raw = []byte(text)
		}
		out[k] = fmt.Sprintf("<%d bytes, sha256 %.4x>", len(raw), sha256.Sum256(raw))
	}
	return out
}

// Only keeps the objects for which want returns true; it gets the key.
func (s State) Only(want func(key string) bool) State {
	kept := State{Objects: maps.Clone(s.Objects), content: s.content, names: s.names}
	maps.DeleteFunc(kept.Objects, func(key, _ string) bool { return !want(key) })
	return kept
}

// Without leaves out kinds, given as in the keys.
func (s State) Without(kinds ...string) State {
	return s.Only(func(key string) bool {
		_, object, _ := strings.Cut(key, " ")
		kind, _, _ := strings.Cut(object, "/")
		return !slices.Contains(kinds, kind)
	})
}

// WithoutStatus leaves out what controllers observed: it may go on changing after everything is done.
func (s State) WithoutStatus() State {
	kept := State{Objects: make(map[string]string, len(s.Objects)), content: s.content, names: s.names}
	for key, text := range s.Objects {
		var out strings.Builder
		inStatus := false
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "-") {
				inStatus = strings.HasPrefix(line, "status:")
			}
			if !inStatus {
				out.WriteString(line)
			}
		}
		kept.Objects[key] = out.String()
	}
	return kept
}

// Count returns the number of objects by side and kind: "management Pod".
func (s State) Count() map[string]int {
	count := map[string]int{}
	for key := range s.Objects {
		kind, _, _ := strings.Cut(key, "/")
		count[kind]++
	}
	return count
}

var (
	uuid    = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	hexID   = regexp.MustCompile(`\b[0-9a-f]{32,64}\b`)
	digest  = regexp.MustCompile(`<[0-9]+ bytes, sha256 [^>]*>`)
	address = regexp.MustCompile(`\b[0-9]{1,3}(\.[0-9]{1,3}){3}\b`)
	port    = regexp.MustCompile(`\b(2[0-9]|3[0-9]|4[0-9])[0-9]{3}\b`)
	network = regexp.MustCompile(`\b(vni|lun): [0-9]+`)
	hosts   = regexp.MustCompile(`anubis-(master|worker)-[0-9]+`)
)

// Anonymous replaces everything that belongs to this cluster alone: its names,
// addresses, ports, hosts, uids and keys. So the states of two clusters of the
// same shape can be compared, for example of one whose migration was
// interrupted and one whose was not. Lists in a status are sorted: some are in
// the order of names.
//
// The result is for comparing only: another Anonymous of it changes nothing.
func (s State) Anonymous() State {
	out := State{Objects: map[string]string{}, names: strings.NewReplacer()}
	mask := func(text string) string {
		for _, m := range []struct {
			what *regexp.Regexp
			by   string
		}{
			{digest, "<bytes>"},
			{uuid, "<uid>"},
			{hexID, "<hex>"},
			{address, "<address>"},
			{hosts, "<host>"},
			{port, "<port>"},
			{network, "$1: <number>"},
		} {
			text = m.what.ReplaceAllString(text, m.by)
		}
		return text
	}
	replace := func(text string) string { return mask(s.names.Replace(text)) }
	for _, key := range slices.Sorted(maps.Keys(s.Objects)) {
		text := s.Objects[key]
		if content, ok := s.content[key]; ok {
			renamed, err := yaml.Marshal(rename(content, replace, false))
			if err != nil {
				// It was YAML a moment ago; show it as it was.
				renamed = []byte(text)
			}
			text = string(renamed)
		}
		name := replace(key)
		for i := 2; out.Objects[name] != ""; i++ {
			name = replace(key) + " " + strconv.Itoa(i)
		}
		// Numbers are masked here, strings were before they were sorted.
		out.Objects[name] = mask(text)
	}
	return out
}

// rename replaces in all strings, the keys of maps included, and sorts lists in
// a status.
func rename(v any, replace func(string) string, sorted bool) any {
	switch x := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(x))
		for k, inner := range x {
			out[replace(k)] = rename(inner, replace, sorted || k == "status")
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i := range x {
			out[i] = rename(x[i], replace, sorted)
		}
		if sorted {
			// Maps are printed in the order of their keys.
			slices.SortFunc(out, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
		return out
	case string:
		return replace(x)
	default:
		return v
	}
}

// replacer knows the cluster's names.
func (c *Cluster) replacer(tb testing.TB) *strings.Replacer {
	tb.Helper()
	names := map[string]string{c.ID: "CLUSTER", c.Organization: "organization", strings.ToUpper(c.Organization[:1]) + c.Organization[1:]: "Organization"}
	for i, vm := range c.vms() {
		// role-id-hash-suffix
		parts := strings.Split(vm, "-")
		require.Len(tb, parts, 4)
		names[vm] = fmt.Sprintf("VM%d", i)
		names[strings.Join(parts[:3], "-")] = fmt.Sprintf("SET%d", i)
		names[parts[2]] = fmt.Sprintf("HASH%d", i)
		names[parts[1]] = fmt.Sprintf("NODE%d", i)
	}
	olds := slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	pairs := make([]string, 0, 2*len(olds))
	for _, old := range olds {
		pairs = append(pairs, old, names[old])
	}
	return strings.NewReplacer(pairs...)
}

// Diff describes what has to be done to come from one state to the other, line
// by line; it is empty if they are the same.
func (s State) Diff(to State) string {
	var out strings.Builder
	for _, key := range slices.Sorted(maps.Keys(merged(s.Objects, to.Objects))) {
		before, had := s.Objects[key]
		after, has := to.Objects[key]
		switch {
		case !had:
			fmt.Fprintf(&out, "+ %s\n", key)
		case !has:
			fmt.Fprintf(&out, "- %s\n", key)
		case before != after:
			fmt.Fprintf(&out, "~ %s\n", key)
			for _, line := range lineDiff(strings.Split(before, "\n"), strings.Split(after, "\n")) {
				fmt.Fprintf(&out, "    %s\n", line)
			}
		}
	}
	return out.String()
}

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// lineDiff returns the lines that differ, each with + or - in front, and the
// parents of their indentation without. It is the longest common subsequence,
// which is quick enough for objects.
func lineDiff(a, b []string) []string {
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := range slices.Backward(a) {
		for j := range slices.Backward(b) {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out, parents []string
	show := func(sign, line string) {
		for _, p := range parents {
			if depth(p) < depth("  "+line) {
				out = append(out, p)
			}
		}
		parents = nil
		out = append(out, sign+" "+line)
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			parents = descend(parents, "  "+a[i])
			i, j = i+1, j+1
		case j == len(b) || (i < len(a) && common[i+1][j] >= common[i][j+1]):
			show("-", a[i])
			i++
		default:
			show("+", b[j])
			j++
		}
	}
	return out
}

// depth of a line of YAML; an item of a list is below its key.
func depth(line string) int { return len(line) - len(strings.TrimLeft(line, " -")) }

// descend keeps the lines that are above the next one in the tree.
func descend(parents []string, line string) []string {
	parents = slices.DeleteFunc(parents, func(p string) bool { return depth(p) >= depth(line) })
	return append(parents, line)
}
