package legacy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

const (
	// maxListsAtOnce bounds the requests of one Load; the client's own rate limit still applies.
	maxListsAtOnce = 8
	// maxSharedObjects bounds what a live source keeps of one list for later Loads.
	maxSharedObjects = 100_000
	// maxRestarts bounds how often a list begins again because its continue token expired.
	maxRestarts = 3
)

// live reads clusters from a management cluster. It only ever lists: one request per kind and namespace, whatever the cluster's size.
type live struct {
	reader   client.Reader
	describe string
	opts     Options
	slots    chan struct{}
	// documents are shared by all clusters.
	documents *documents

	mu     sync.Mutex
	shared map[listKey]*listing
	served map[string]schema.GroupVersion // by kind: the version that answered
}

type listKey struct {
	kind, namespace string
}

// listing is one list that several Loads share.
type listing struct {
	mu   sync.Mutex
	done bool
	list listed
}

// listed is what a list gave.
type listed struct {
	objects []object
	// byHome holds the objects by the cluster they belong to.
	byHome map[string][]object
	// unserved tells that the management cluster does not know the kind.
	unserved bool
}

// NewLive reads from a management cluster. The reader should talk to the API server directly: a caching reader would start to
// watch everything that is listed. Kinds all clusters share are listed once for the life of the source (see Options.Unshared).
func NewLive(reader client.Reader, describe string, opts Options) Source {
	return &live{
		documents: newDocuments(),
		reader:    reader, describe: describe, opts: opts.withDefaults(), slots: make(chan struct{}, maxListsAtOnce),
		shared: map[listKey]*listing{}, served: map[string]schema.GroupVersion{},
	}
}

func (l *live) Describe() string { return "live " + printable(l.describe) }

func (l *live) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.shared)
	return nil
}

// IDs lists the clusters that KVMConfigs and KVMClusterConfigs name.
func (l *live) IDs(ctx context.Context) ([]string, error) {
	naming := slices.DeleteFunc(kinds(), func(k kind) bool { return k.name != "KVMConfig" && k.name != "KVMClusterConfig" })
	found, errs := lists(len(naming), func(i int) (listed, error) { return l.list(ctx, naming[i], "default", true) })
	ids := map[string]bool{}
	for i := range naming {
		if errs[i] != nil {
			return nil, fmt.Errorf("listing clusters: %w", errs[i])
		}
		for id := range found[i].byHome {
			ids[id] = true
		}
	}
	return slices.Sorted(maps.Keys(ids)), nil
}

// lists asks for several lists side by side.
func lists(n int, list func(i int) (listed, error)) ([]listed, []error) {
	found, errs := make([]listed, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { found[i], errs[i] = list(i) })
	}
	wg.Wait()
	return found, errs
}

// Load lists the cluster's namespace, what namespace default and the cluster scope have of it, and the namespace of its
// organization, then assembles the picture and looks inside the workload cluster if there is a way in.
func (l *live) Load(ctx context.Context, id string) (*Cluster, error) {
	return l.loadCluster(ctx, id, false)
}

func (l *live) loadCluster(ctx context.Context, id string, brief bool) (*Cluster, error) {
	c, err := l.picture(ctx, id, brief)
	if err != nil {
		return nil, fmt.Errorf("loading cluster %s: %w", printable(id), err)
	}
	return c, nil
}

// picture follows the steps of Load; a brief one leaves out what an inventory does not need.
func (l *live) picture(ctx context.Context, id string, brief bool) (*Cluster, error) {
	ids, err := l.IDs(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(ids, id) {
		return nil, ErrNotFound
	}
	in := input{id: id, brief: brief, opts: l.opts, documents: l.documents}
	wanted := l.clusterLists(id, brief)
	organization, err := l.organization(ctx, id)
	if err != nil {
		return nil, err
	}
	if organization != "" {
		wanted = append(wanted, organizationLists(organization, brief)...)
	}
	if err := l.collect(ctx, &in, wanted); err != nil {
		return nil, err
	}
	c := assemble(in)
	if l.opts.WorkloadReader != nil && !brief {
		if err := l.lookInside(ctx, c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// wantedList is a kind and a namespace to list it in.
type wantedList struct {
	kind      kind
	namespace string
}

// clusterLists are the lists to read before the organization is known.
func (l *live) clusterLists(id string, brief bool) []wantedList {
	var wanted []wantedList
	for _, k := range kinds() {
		if (brief && !inBrief(Ref{Kind: k.name}) && k.where != inService) || ofNoCluster(k.name) {
			continue
		}
		switch k.where {
		case inNamespace:
			wanted = append(wanted, wantedList{k, id})
		case inDefault:
			wanted = append(wanted, wantedList{k, "default"})
		case inBoth:
			wanted = append(wanted, wantedList{k, "default"}, wantedList{k, id})
		case inService:
			wanted = append(wanted, wantedList{k, l.opts.StorageConfig.Namespace})
		case everywhere:
			wanted = append(wanted, wantedList{k, ""})
		case nowhere, inOrganization:
		}
	}
	return wanted
}

// ofNoCluster tells the kinds whose objects never belong to a cluster.
func ofNoCluster(kind string) bool {
	return kind == "Node" || kind == kindDefinition || kind == "StorageClass"
}

// organizationLists are the lists to read in the organization's namespace: what Cluster API has there, and its Secrets.
func organizationLists(organization string, brief bool) []wantedList {
	var wanted []wantedList
	for _, k := range kinds() {
		if (k.where == inOrganization && (!brief || inBrief(Ref{Kind: k.name}))) || (k.name == "Secret" && !brief) {
			wanted = append(wanted, wantedList{k, "org-" + organization})
		}
	}
	return wanted
}

// organization reads the owner from the raw KVMConfig, so that all lists can be asked for at once; assemble does it again, with all the other records at hand.
func (l *live) organization(ctx context.Context, id string) (string, error) {
	for _, k := range kinds() {
		if k.name != "KVMConfig" {
			continue
		}
		found, err := l.list(ctx, k, "default", true)
		if err != nil {
			return "", err
		}
		for _, o := range found.byHome[id] {
			labels := labelsOf(o.raw)
			return first(labels[labelOrganization], labels[labelCustomerOld], textAt(o.raw, "spec", "cluster", "customer", "id")), nil
		}
	}
	return "", nil
}

// collect runs lists side by side and adds what belongs to the cluster. Only a cancelled context is an error: a list that fails
// is a problem, because the rest of the picture is still worth having.
func (l *live) collect(ctx context.Context, in *input, wanted []wantedList) error {
	found, errs := lists(len(wanted), func(i int) (listed, error) {
		return l.list(ctx, wanted[i].kind, wanted[i].namespace, wanted[i].namespace != in.id)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for i, want := range wanted {
		k, where := want.kind, ""
		if want.namespace != "" {
			where = " in namespace " + want.namespace
		}
		switch {
		case errs[i] != nil:
			in.problems = append(in.problems, problem(ProblemListFailed, k.plural, "", "%s%s could not be listed: %s", k.plural, where, errs[i]))
		case found[i].unserved && k.legacy:
			in.problems = append(in.problems, problem(ProblemLegacyKindUnserved, k.plural, "", "the management cluster does not serve %s.%s", k.plural, k.versions[0].Group))
		}
		own := want.namespace == in.id
		switch {
		case k.where == inService:
			in.service = serviceRecords(found[i].objects, l.opts.StorageConfig)[in.id]
		case own || k.name == "Release":
			for _, o := range found[i].objects {
				in.objects = append(in.objects, o.copyIf(!own))
			}
		default:
			for _, o := range found[i].byHome[in.id] {
				in.objects = append(in.objects, o.copyIf(true))
			}
		}
	}
	return nil
}

// copyIf gives every picture its own copy of a shared object.
func (o object) copyIf(shared bool) object {
	if shared {
		o.raw = deepCopy(o.raw)
	}
	return o
}

// list returns the objects of a kind in a namespace. Only lists that several clusters look at are kept.
func (l *live) list(ctx context.Context, k kind, namespace string, keep bool) (listed, error) {
	if !keep || l.opts.Unshared {
		return l.fetch(ctx, k, namespace)
	}
	key := listKey{k.name, namespace}
	l.mu.Lock()
	shared := l.shared[key]
	if shared == nil {
		shared = &listing{}
		l.shared[key] = shared
	}
	l.mu.Unlock()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.done {
		return shared.list, nil
	}
	list, err := l.fetch(ctx, k, namespace)
	if err != nil {
		return listed{}, err
	}
	if len(list.objects) <= maxSharedObjects {
		shared.list, shared.done = list, true
	}
	return list, nil
}

// fetch asks the API server, trying the versions of a kind until one is served.
func (l *live) fetch(ctx context.Context, k kind, namespace string) (listed, error) {
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-ctx.Done():
		return listed{}, ctx.Err()
	}
	l.mu.Lock()
	versions := k.versions
	if known, ok := l.served[k.name]; ok {
		versions = []schema.GroupVersion{known}
	}
	l.mu.Unlock()
	for _, version := range versions {
		objects, err := listPages(ctx, l.reader, version.WithKind(k.name), namespace, l.opts.PageSize)
		if isUnserved(err) {
			continue
		}
		if err != nil {
			return listed{}, err
		}
		l.mu.Lock()
		l.served[k.name] = version
		l.mu.Unlock()
		list := listed{objects: objects, byHome: map[string][]object{}}
		for _, o := range objects {
			if home := homeOf(headerOfRaw(o.raw)); home != "" {
				list.byHome[home] = append(list.byHome[home], o)
			}
		}
		return list, nil
	}
	return listed{unserved: true}, nil
}

// isUnserved tells that the API server, or the client, does not know the kind. A list of a kind that exists is never NotFound.
func isUnserved(err error) bool {
	return meta.IsNoMatchError(err) || runtime.IsNotRegisteredError(err) || apierrors.IsNotFound(err)
}

// listPages lists page by page. When the server has forgotten where a long list was, it begins again.
func listPages(ctx context.Context, reader client.Reader, gvk schema.GroupVersionKind, namespace string, pageSize int64) ([]object, error) {
	var objects []object
	token := ""
	for restarts := 0; ; {
		var page unstructured.UnstructuredList
		page.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		err := reader.List(ctx, &page, &client.ListOptions{Namespace: namespace, Limit: pageSize, Continue: token})
		if apierrors.IsResourceExpired(err) && token != "" && restarts < maxRestarts {
			objects, token = nil, ""
			restarts++
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			raw := page.Items[i].Object
			if textAt(raw, "kind") == "" || textAt(raw, "apiVersion") == "" {
				page.Items[i].SetGroupVersionKind(gvk)
			}
			slim(raw)
			objects = append(objects, object{ref: refOfRaw(raw), origin: "live", raw: raw})
		}
		if token = page.GetContinue(); token == "" {
			return objects, nil
		}
	}
}

// compactManagedFields keeps who wrote an object, how and when, but not which fields: that is most of an object's size, and
// whether somebody else writes shows without it.
func compactManagedFields(raw map[string]any) {
	entries, _ := valueAt(raw, "metadata", "managedFields").([]any)
	for _, entry := range entries {
		if fields, ok := entry.(map[string]any); ok {
			delete(fields, "fieldsV1")
			delete(fields, "fieldsType")
		}
	}
}

// lookInside reads the workload cluster's Nodes. A cluster that does not answer is a problem, not an error.
func (l *live) lookInside(ctx context.Context, c *Cluster) error {
	reader, err := l.opts.WorkloadReader(ctx, c)
	if err == nil && reader == nil {
		return nil
	}
	var nodes []object
	if err == nil {
		nodes, err = listPages(ctx, reader, schema.GroupVersionKind{Version: "v1", Kind: "Node"}, "", l.opts.PageSize)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		c.Problems = append(c.Problems, problem(ProblemInsideUnreachable, c.ID, "", "the workload cluster of %s could not be read: %s", c.ID, err))
		finding.Sort(c.Problems)
		return nil
	}
	a := &assembler{input: input{id: c.ID, opts: l.opts, inside: nodes, insideKnown: true}, c: c}
	a.workloadCluster()
	finding.Sort(c.Problems)
	return nil
}

// Fleet lists hosts, kinds, records and releases.
func (l *live) Fleet(ctx context.Context) (*Fleet, error) {
	objects, problems, err := l.listManagement(ctx, func(k kind) bool { return k.name != kindDefinition || l.opts.Definitions == nil })
	if err != nil {
		return nil, fmt.Errorf("reading the management cluster: %w", err)
	}
	ids, err := l.IDs(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the management cluster: %w", err)
	}
	f := assembleFleet(objects, ids, l.opts)
	f.Problems = append(f.Problems, problems...)
	if l.opts.Definitions != nil {
		if f.CRDs, err = l.opts.Definitions(ctx); ctx.Err() != nil {
			return nil, fmt.Errorf("reading the management cluster: %w", ctx.Err())
		}
		if err != nil {
			f.Problems = append(f.Problems, problem(ProblemListFailed, pluralDefinition, "", "%s could not be listed: %s", pluralDefinition, err))
		}
	}
	finding.Sort(f.Problems)
	return f, nil
}

// managementObjects are the whole objects of the management cluster itself that this package understands.
func (l *live) managementObjects(ctx context.Context) ([]object, []finding.Finding, error) {
	return l.listManagement(ctx, func(kind) bool { return true })
}

func (l *live) listManagement(ctx context.Context, wanted func(kind) bool) ([]object, []finding.Finding, error) {
	var objects []object
	var problems []finding.Finding
	for _, k := range kinds() {
		if !isManagement(Ref{APIVersion: k.versions[0].String(), Kind: k.name}) || !wanted(k) {
			continue
		}
		namespace := ""
		if k.where == inService {
			namespace = l.opts.StorageConfig.Namespace
		}
		found, err := l.list(ctx, k, namespace, true)
		switch {
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case err != nil:
			problems = append(problems, problem(ProblemListFailed, k.plural, "", "%s could not be listed: %s", k.plural, err))
		case found.unserved && k.legacy:
			problems = append(problems, problem(ProblemLegacyKindUnserved, k.plural, "", "the management cluster does not serve %s.%s", k.plural, k.versions[0].Group))
		}
		for _, o := range found.objects {
			if isFree(o) {
				objects = append(objects, o.copyIf(true))
			}
		}
	}
	return objects, problems, nil
}

// briefly is what sources of this package can do beyond Source.
type briefly interface {
	loadCluster(ctx context.Context, id string, brief bool) (*Cluster, error)
}

// LoadInventory assembles a picture that is good enough for an inventory and costs a fraction of Load: KVMConfig,
// KVMClusterConfig, Release, namespace, claims, pods, Nodes, and what Cluster API knows. Deployments, ReplicaSets, ConfigMaps,
// boot data and Secrets are left out, and nothing is said about their absence.
func LoadInventory(ctx context.Context, source Source, id string) (*Cluster, error) {
	if s, ok := source.(briefly); ok {
		return s.loadCluster(ctx, id, true)
	}
	return source.Load(ctx, id)
}

// errForeign tells that a Source comes from elsewhere and does not give what a snapshot needs.
var errForeign = errors.New("the source was not made by this package")
