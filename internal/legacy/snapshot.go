package legacy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

const (
	// insideFolder is the folder that holds what was read from inside a workload cluster.
	insideFolder = "workload-cluster"
	// memoryForYAML is how much of the YAML objects' JSON form is kept in memory; what goes beyond is spooled.
	memoryForYAML = 48 * mebibyte
)

// object is one Kubernetes object as it was read.
type object struct {
	ref    Ref
	origin string
	raw    map[string]any
	// doubled are keys that the object's JSON text gives twice.
	doubled []jsonKey
}

// entry is one object of the index.
type entry struct {
	ref   Ref
	home  string
	vmPod bool
	file  int
	item  int
	// encoded is the object's JSON when it came from YAML and fits into memory, else spooled tells where it lies, else the file does.
	encoded        []byte
	spooled        bool
	offset, length int64
}

// snapshot reads clusters from files. It keeps an index of headers in memory and reads a cluster's objects when it is loaded.
type snapshot struct {
	name    string
	opts    Options
	catalog catalog
	store   *store
	// documents are shared by all clusters.
	documents *documents

	entries []entry
	// mine and inside hold the entries of each cluster, in the order of entries.
	mine, inside map[string][]int
	ids          []string
	// shared are entries that belong to the management cluster.
	shared []int
	// problems belong to no cluster, clusterProblems to one.
	problems        []finding.Finding
	clusterProblems map[string][]finding.Finding
	// service holds cluster-service's records; one object holds them all, so it is decoded once, not for every cluster.
	service     map[string]*ServiceRecord
	serviceOnce sync.Once
	// redacted are the folders whose marker says that secrets are digests.
	redacted []string
	// twice are the keys that the YAML of an entry gives twice.
	twice map[int][]string
}

// Open reads the index of a snapshot: a directory, a tar archive (also compressed), or a single file. Every Kubernetes object in
// YAML or JSON counts, whatever its file is called. What cannot be read is a problem of the fleet or of its cluster; Open itself
// only fails when there is nothing to read from.
func Open(ctx context.Context, name string, opts Options) (Source, error) {
	opts = opts.withDefaults()
	files, problems, err := openStore(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	s := &snapshot{
		documents: newDocuments(),
		name:      filepath.Base(filepath.Clean(name)), opts: opts, catalog: newCatalog(), store: files, problems: problems,
		mine: map[string][]int{}, inside: map[string][]int{}, clusterProblems: map[string][]finding.Finding{}, twice: map[int][]string{},
	}
	if err := s.index(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("indexing snapshot: %w", err), s.Close())
	}
	return s, nil
}

// Describe names the snapshot by its last path element only: reports must not tell where a person keeps files.
func (s *snapshot) Describe() string { return "snapshot " + printable(s.name) }

func (s *snapshot) Close() error { return s.store.close() }

func (s *snapshot) IDs(context.Context) ([]string, error) { return slices.Clone(s.ids), nil }

// scanned is what one file holds.
type scanned struct {
	entries  []entry
	problems []finding.Finding
	redacted bool
	// twice are the keys that the YAML of an entry gives twice.
	twice map[int][]string
}

// index scans all files, then decides which object belongs to which cluster.
func (s *snapshot) index(ctx context.Context) error {
	results := make([]scanned, len(s.store.files))
	memory := &budget{left: memoryForYAML}
	heavy := make(chan struct{}, 1)
	parallel(len(results), func(i int) {
		if ctx.Err() == nil {
			scanner := scanner{store: s.store, file: i, opts: s.opts, memory: memory, heavy: heavy}
			scanner.scan()
			results[i] = scanner.result
		}
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	ofArchive := 0
	if s.store.root == nil {
		ofArchive = len(s.problems)
	}
	intern := interner{}
	for i := range results {
		for n, texts := range results[i].twice {
			s.twice[len(s.entries)+n] = texts
		}
		for _, e := range results[i].entries {
			intern.ref(&e.ref)
			e.home = intern.text(e.home)
			s.entries = append(s.entries, e)
		}
		s.problems = append(s.problems, results[i].problems...)
		if results[i].redacted {
			s.redacted = append(s.redacted, path.Dir(s.store.files[i].path))
		}
		results[i] = scanned{}
	}
	s.findIDs()
	insideHomes := s.insideHomes()
	s.assign(insideHomes)
	s.dropDuplicates()
	s.shareUnread(ofArchive)
	finding.Sort(s.problems)
	return nil
}

// shareUnread tells every cluster of what could not be read and may be its own: what the archive as a whole lacks, which are the first problems, and files that lie in its folder, or in nobody's. One
// without records, of which only virtual machines are known, has no folder.
// Without that, a cluster that has lost a Secret to a broken file would look like one that never had it.
func (s *snapshot) shareUnread(ofArchive int) {
	lost := map[string][]finding.Finding{}
	var owners namesByDir
	for i, p := range s.problems {
		if !isUnread(p) {
			continue
		}
		if owners == nil {
			owners = s.owners()
		}
		for _, id := range s.ids {
			if i < ofArchive || owners.near(p.Object, id) || !owners["."][id] {
				lost[id] = append(lost[id], p)
			}
		}
	}
	for id, problems := range lost {
		s.clusterProblems[id] = append(s.clusterProblems[id], unread(problems))
	}
}

// isUnread tells the problems behind which objects may be hidden that nobody knows of.
func isUnread(p finding.Finding) bool {
	return p.Severity == finding.Error && strings.HasPrefix(p.ID, problemsOfReading)
}

// unread sums up what could not be read: a folder may be full of files that are none of Kubernetes, and the fleet's problems name each.
func unread(problems []finding.Finding) finding.Finding {
	const most = 3
	finding.Sort(problems)
	var said []string
	for _, p := range problems[:min(most, len(problems))] {
		said = append(said, p.ID+" "+p.Message)
	}
	if n := len(problems) - most; n > 0 {
		said = append(said, fmt.Sprintf("and %d more", n))
	}
	return problem(ProblemPerhapsUnread, problems[0].Object, "", "what could not be read may be of this cluster: %s", strings.Join(said, "; "))
}

// owners are the clusters of which each folder has the records or, below it, what was read inside: these tell whose folder it is. One with other objects of a single cluster may have lost those of
// the next one, as the folder of Secrets where each kind has its own.
func (s *snapshot) owners() namesByDir {
	owners := namesByDir{}
	own := func(id string, e *entry) {
		for dir := s.store.files[e.file].path; dir != "."; {
			dir = path.Dir(dir)
			owners.add(dir, id)
		}
	}
	for id, indexes := range s.mine {
		for _, i := range indexes {
			if e := &s.entries[i]; isClusterRecord(e.ref) && e.home == id {
				own(id, e)
			}
		}
	}
	for id, indexes := range s.inside {
		for _, i := range indexes {
			own(id, &s.entries[i])
		}
	}
	return owners
}

// findIDs collects the clusters: every KVMConfig, KVMClusterConfig, and namespace with VM pods.
func (s *snapshot) findIDs() {
	ids := map[string]bool{}
	for i := range s.entries {
		e := &s.entries[i]
		if s.insideDir(e) != nil {
			continue
		}
		switch {
		case isClusterRecord(e.ref) && e.home != "":
			ids[e.home] = true
		case e.vmPod:
			ids[e.ref.Namespace] = true
		}
	}
	s.ids = slices.Sorted(maps.Keys(ids))
}

// isClusterRecord tells the kinds that make a cluster known.
func isClusterRecord(ref Ref) bool {
	return (ref.Kind == "KVMConfig" && group(ref.APIVersion) == groupProvider) || (ref.Kind == "KVMClusterConfig" && group(ref.APIVersion) == groupCore)
}

// insideDir returns the folder that holds the folder workload-cluster an entry lies in; nil when it lies in none.
func (s *snapshot) insideDir(e *entry) *string {
	segments := strings.Split(s.store.files[e.file].path, "/")
	for i, segment := range segments[:len(segments)-1] {
		if segment == insideFolder {
			dir := strings.Join(segments[:i], "/")
			return &dir
		}
	}
	return nil
}

// insideHomes decides which cluster each folder workload-cluster belongs to: the one whose KVMConfig lies in or below the folder
// around it, else the one that folder is named after, else the one whose VM pods are called like the Nodes found inside.
func (s *snapshot) insideHomes() map[string]string {
	nodes := s.nodesInside()
	if len(nodes) == 0 {
		return nil
	}
	configs, pods := s.claims(nodes)
	homes := map[string]string{}
	for dir := range nodes {
		if id, ok := configs.single(dir); ok {
			homes[dir] = id
			continue
		}
		if base := path.Base(dir); slices.Contains(s.ids, base) {
			homes[dir] = base
			continue
		}
		found := namesByDir{}
		for node := range nodes[dir] {
			if id := pods[node]; id != "" {
				found.add(dir, id)
			}
		}
		if id, ok := found.single(dir); ok {
			homes[dir] = id
		}
	}
	return homes
}

// namesByDir are sets of names, by folder.
type namesByDir map[string]map[string]bool

// add makes sure that a folder is known, and adds a name to it.
func (n namesByDir) add(dir string, names ...string) {
	if n[dir] == nil {
		n[dir] = map[string]bool{}
	}
	for _, name := range names {
		n[dir][name] = true
	}
}

// single returns the only name of a folder.
func (n namesByDir) single(dir string) (string, bool) {
	for name := range n[dir] {
		return name, len(n[dir]) == 1
	}
	return "", false
}

// near tells that the folder nearest to a file that is anybody's is that of the one with this name: a cluster's folder holds nothing of others.
func (n namesByDir) near(file, name string) bool {
	for dir := path.Dir(file); ; dir = path.Dir(dir) {
		if len(n[dir]) > 0 || dir == path.Dir(dir) {
			return n[dir][name]
		}
	}
}

// nodesInside returns the folders that hold a folder workload-cluster, with the names of the Nodes inside.
func (s *snapshot) nodesInside() namesByDir {
	nodes := namesByDir{}
	for i := range s.entries {
		e := &s.entries[i]
		dir := s.insideDir(e)
		switch {
		case dir == nil:
		case e.ref.Kind == "Node":
			nodes.add(*dir, e.ref.Name)
		default:
			nodes.add(*dir)
		}
	}
	return nodes
}

// claims returns the clusters whose KVMConfig lies in or below each of the folders, and the cluster of every VM pod.
func (s *snapshot) claims(dirs namesByDir) (configs namesByDir, pods map[string]string) {
	configs, pods = namesByDir{}, map[string]string{}
	for i := range s.entries {
		e := &s.entries[i]
		if s.insideDir(e) != nil {
			continue
		}
		if e.vmPod {
			pods[e.ref.Name] = e.ref.Namespace
		}
		if e.ref.Kind != "KVMConfig" || !isClusterRecord(e.ref) {
			continue
		}
		for dir := s.store.files[e.file].path; dir != ""; {
			if dir = path.Dir(dir); dir == "." {
				dir = ""
			}
			if dirs[dir] != nil {
				configs.add(dir, e.home)
			}
		}
	}
	return configs, pods
}

// assign gives every entry to its cluster, to the management cluster, or to nobody.
func (s *snapshot) assign(insideHomes map[string]string) {
	known := map[string]bool{}
	for _, id := range s.ids {
		known[id] = true
	}
	homeless, strangers := map[string]int{}, map[string]int{}
	for i := range s.entries {
		e := &s.entries[i]
		if dir := s.insideDir(e); dir != nil {
			if id := insideHomes[*dir]; id != "" {
				s.inside[id] = append(s.inside[id], i)
			} else {
				homeless[*dir]++
			}
			continue
		}
		switch {
		case known[e.ref.Namespace]:
			s.mine[e.ref.Namespace] = append(s.mine[e.ref.Namespace], i)
		case known[e.home]:
			s.mine[e.home] = append(s.mine[e.home], i)
		default:
			s.shared = append(s.shared, i)
			if isLegacy(e.ref) && e.home != "" {
				strangers[e.home]++
			}
		}
	}
	for dir, n := range homeless {
		name := path.Join(dir, insideFolder)
		s.problems = append(s.problems, problem(ProblemInsideWithoutHome, name, "", "%d objects in %s could not be given to any cluster", n, name))
	}
	for id, n := range strangers {
		s.problems = append(s.problems, problem(ProblemObjectsOfUnknown, id, "", "%d legacy objects name the cluster %s, which has no KVMConfig", n, id))
	}
}

// identity is what two files may not disagree about. Versions of one kind count as the same object.
type identity struct {
	inside                 string
	group, kind, namespace string
	name                   string
}

// dropDuplicates keeps one of several entries for the same object and reports contradictions.
func (s *snapshot) dropDuplicates() {
	drop := map[int]bool{}
	look := func(indexes []int, inside string, report func(finding.Finding)) {
		seen := map[identity]int{}
		for _, i := range indexes {
			e := &s.entries[i]
			k, known := s.catalog.of(e.ref)
			key := identity{inside: inside, group: group(e.ref.APIVersion), kind: e.ref.Kind, namespace: e.ref.Namespace, name: e.ref.Name}
			if known {
				key.group = k.versions[0].Group
			}
			other, found := seen[key]
			if !found {
				seen[key] = i
				continue
			}
			keep, lose := other, i
			if k.preference(e.ref.APIVersion) < k.preference(s.entries[other].ref.APIVersion) {
				keep, lose = i, other
			}
			seen[key] = keep
			drop[lose] = true
			if p := s.compare(other, i); p != nil {
				report(*p)
			}
		}
	}
	for id, indexes := range s.mine {
		look(indexes, "", func(p finding.Finding) { s.clusterProblems[id] = append(s.clusterProblems[id], p) })
	}
	for id, indexes := range s.inside {
		look(indexes, id, func(p finding.Finding) { s.clusterProblems[id] = append(s.clusterProblems[id], p) })
	}
	look(s.shared, "", func(p finding.Finding) { s.problems = append(s.problems, p) })
	gone := func(i int) bool { return drop[i] }
	for id := range s.mine {
		s.mine[id] = slices.DeleteFunc(s.mine[id], gone)
	}
	for id := range s.inside {
		s.inside[id] = slices.DeleteFunc(s.inside[id], gone)
	}
	s.shared = slices.DeleteFunc(s.shared, gone)
}

// compare tells what is wrong with two entries for one object; nil when they mean the same.
func (s *snapshot) compare(a, b int) *finding.Finding {
	one, two := &s.entries[a], &s.entries[b]
	if one.ref.UID != "" && one.ref.UID == two.ref.UID && one.ref.APIVersion != two.ref.APIVersion {
		return nil // the same object in two versions of its kind
	}
	first, errFirst := s.load(one)
	second, errSecond := s.load(two)
	if errFirst != nil || errSecond != nil || equalObjects(first.raw, second.raw) {
		return nil // unreadable ones are reported when they are loaded
	}
	id, what := ProblemDuplicateContradicts, "contradict each other"
	if one.ref.UID != "" && one.ref.UID == two.ref.UID {
		id, what = ProblemDuplicateOlder, "show different states of it"
	}
	p := problem(id, one.ref.String(), "", "%s and %s both hold %s and %s", s.origin(one), s.origin(two), one.ref, what)
	return &p
}

// equalObjects compares what objects mean: bookkeeping of the API server does not count.
func equalObjects(a, b map[string]any) bool {
	strip := func(raw map[string]any) ([]byte, error) {
		raw = maps.Clone(raw)
		if metadata, ok := raw["metadata"].(map[string]any); ok {
			metadata = maps.Clone(metadata)
			for _, key := range []string{"resourceVersion", "managedFields", "selfLink", "generation"} {
				delete(metadata, key)
			}
			raw["metadata"] = metadata
		}
		return encodeJSON(raw)
	}
	one, errOne := strip(a)
	two, errTwo := strip(b)
	return errOne == nil && errTwo == nil && bytes.Equal(one, two)
}

// origin names file and object, as findings show it.
func (s *snapshot) origin(e *entry) string {
	return fmt.Sprintf("%s#%d", s.store.files[e.file].path, e.item)
}

// load reads and decodes the object of an entry.
func (s *snapshot) load(e *entry) (object, error) {
	data := e.encoded
	var err error
	switch {
	case data != nil:
	case e.spooled:
		data, err = s.store.spool.read(e.offset, e.length)
	default:
		data, err = s.store.read(s.store.files[e.file], e.offset, e.length)
	}
	if err != nil {
		return object{}, fmt.Errorf("reading %s: %w", s.origin(e), err)
	}
	raw, doubled, err := decodeDoubled(string(data))
	if err != nil {
		return object{}, fmt.Errorf("decoding %s: %w", s.origin(e), err)
	}
	// Elements of typed lists leave these out.
	if raw["kind"] == nil {
		raw["kind"] = e.ref.Kind
	}
	if raw["apiVersion"] == nil {
		raw["apiVersion"] = e.ref.APIVersion
	}
	return object{ref: e.ref, origin: s.origin(e), raw: raw, doubled: doubled}, nil
}

// objects loads a set of entries in parallel; what cannot be read becomes a problem.
func (s *snapshot) objects(ctx context.Context, indexes []int) ([]object, []finding.Finding, error) {
	objects := make([]object, len(indexes))
	errs := make([]error, len(indexes))
	parallel(len(indexes), func(i int) {
		if ctx.Err() == nil {
			objects[i], errs[i] = s.load(&s.entries[indexes[i]])
		}
	})
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	var problems []finding.Finding
	var loaded []object
	for i, err := range errs {
		if err != nil {
			e := &s.entries[indexes[i]]
			problems = append(problems, problem(ProblemFileUnreadable, e.ref.String(), "", "%s cannot be read: %s", s.origin(e), reason(err)))
			continue
		}
		for _, key := range objects[i].doubled {
			problems = append(problems, s.doubled(&s.entries[indexes[i]], key))
		}
		loaded = append(loaded, objects[i])
	}
	return loaded, problems, nil
}

// doubled reports a key that the JSON text of an entry gives twice, as the YAML decoder would.
func (s *snapshot) doubled(e *entry, key jsonKey) finding.Finding {
	file := scanner{store: s.store, file: e.file}
	line := file.lineOf(e.offset + int64(key.offset))
	return problem(ProblemDuplicateKey, e.ref.String(), "", "%s, object %d, line %d: key %q already set in map", file.path(), e.item, line, key.name)
}

// Load assembles one cluster.
func (s *snapshot) Load(ctx context.Context, id string) (*Cluster, error) {
	return s.loadCluster(ctx, id, false)
}

func (s *snapshot) loadCluster(ctx context.Context, id string, brief bool) (*Cluster, error) {
	if _, found := slices.BinarySearch(s.ids, id); !found {
		return nil, fmt.Errorf("loading cluster %s: %w", printable(id), ErrNotFound)
	}
	indexes := s.indexesOf(id, brief)
	loaded, problems, err := s.objects(ctx, indexes)
	if err != nil {
		return nil, fmt.Errorf("loading cluster %s: %w", printable(id), err)
	}
	for _, i := range indexes {
		for _, text := range s.twice[i] {
			problems = append(problems, problem(ProblemDuplicateKey, s.entries[i].ref.String(), "", "%s", text))
		}
	}
	in := input{id: id, brief: brief, opts: s.opts, documents: s.documents, problems: append(problems, s.clusterProblems[id]...), redacted: s.isRedacted(id)}
	in.service = s.serviceRecord(ctx, id)
	inside := map[string]bool{}
	for _, i := range s.inside[id] {
		inside[s.origin(&s.entries[i])] = true
	}
	for _, o := range loaded {
		switch {
		case inside[o.origin]:
			in.inside = append(in.inside, o)
		default:
			in.objects = append(in.objects, o)
		}
	}
	in.insideKnown = len(s.inside[id]) > 0
	return assemble(in), nil
}

// indexesOf are the entries that a cluster is assembled of.
func (s *snapshot) indexesOf(id string, brief bool) []int {
	var indexes []int
	for _, i := range s.mine[id] {
		if !brief || inBrief(s.entries[i].ref) {
			indexes = append(indexes, i)
		}
	}
	for _, i := range s.shared {
		if ref := s.entries[i].ref; ref.Kind == "Release" && isLegacy(ref) {
			indexes = append(indexes, i)
		}
	}
	for _, i := range s.inside[id] {
		if !brief || s.entries[i].ref.Kind == "Node" {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

func (s *snapshot) serviceRecord(ctx context.Context, id string) *ServiceRecord {
	s.serviceOnce.Do(func() {
		var indexes []int
		for _, i := range s.shared {
			if ref := s.entries[i].ref; ref.Kind == "StorageConfig" && isLegacy(ref) {
				indexes = append(indexes, i)
			}
		}
		objects, _, err := s.objects(context.WithoutCancel(ctx), indexes)
		if err == nil {
			s.service = serviceRecords(objects, s.opts.StorageConfig) // what cannot be read is a problem of the fleet
		}
	})
	record := s.service[id]
	if record == nil {
		return nil
	}
	return &ServiceRecord{Source: record.Source, Entries: maps.Clone(record.Entries)}
}

// isRedacted tells whether any of a cluster's files lies below the marker of a redacted snapshot.
func (s *snapshot) isRedacted(id string) bool {
	for _, i := range s.mine[id] {
		name := s.store.files[s.entries[i].file].path
		for _, dir := range s.redacted {
			if dir == "." || strings.HasPrefix(name, dir+"/") {
				return true
			}
		}
	}
	return false
}

// Fleet returns hosts, kinds, records and the problems that belong to no cluster.
func (s *snapshot) Fleet(ctx context.Context) (*Fleet, error) {
	objects, problems, err := s.managementObjects(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the management cluster: %w", err)
	}
	f := assembleFleet(objects, s.ids, s.opts)
	f.Problems = append(append(f.Problems, problems...), s.problems...)
	finding.Sort(f.Problems)
	return f, nil
}

// managementObjects are the objects of the management cluster itself that this package understands.
func (s *snapshot) managementObjects(ctx context.Context) ([]object, []finding.Finding, error) {
	var indexes []int
	for _, i := range s.shared {
		if isManagement(s.entries[i].ref) {
			indexes = append(indexes, i)
		}
	}
	return s.objects(ctx, indexes)
}

// isManagement tells the kinds Fleet is made of.
func isManagement(ref Ref) bool {
	switch ref.Kind {
	case "Node":
		return ref.APIVersion == "v1"
	case "PersistentVolume":
		return ref.APIVersion == "v1"
	case "StorageClass":
		return group(ref.APIVersion) == "storage.k8s.io"
	case kindDefinition:
		return group(ref.APIVersion) == "apiextensions.k8s.io"
	case "Release":
		return group(ref.APIVersion) == groupRelease
	case "StorageConfig":
		return group(ref.APIVersion) == groupCore
	}
	return false
}

// isFree leaves out the volumes that have a claim: they belong to whom the claim belongs to.
func isFree(o object) bool {
	return o.ref.Kind != "PersistentVolume" || textAt(o.raw, "spec", "claimRef", "name") == ""
}

// scanner finds the objects of one file.
type scanner struct {
	store  *store
	file   int
	opts   Options
	memory *budget
	// heavy admits one large YAML file at a time, because decoding takes many times its size.
	heavy  chan struct{}
	result scanned
}

func (s *scanner) path() string { return s.store.files[s.file].path }

func (s *scanner) report(id, format string, args ...any) {
	s.result.problems = append(s.result.problems, problem(id, s.path(), "", format, args...))
}

// scan reads one file. Files that claim to be YAML or JSON must parse; of others only Kubernetes objects count.
func (s *scanner) scan() {
	claimed := false
	switch strings.ToLower(path.Ext(s.path())) {
	case ".yaml", ".yml", ".json":
		claimed = true
	}
	r, err := s.store.open(s.store.files[s.file])
	if err != nil {
		s.report(ProblemFileUnreadable, "%s cannot be read: %s", s.path(), reason(err))
		return
	}
	defer r.Close() //nolint:errcheck // only read from
	head := make([]byte, 32<<10)
	n, err := io.ReadFull(r, head)
	head = head[:n]
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		s.report(ProblemFileUnreadable, "%s cannot be read: %s", s.path(), reason(err))
		return
	}
	if bytes.IndexByte(head, 0) >= 0 {
		if claimed {
			s.report(ProblemFileMalformed, "%s is binary, not text", s.path())
		}
		return
	}
	if !claimed && (!bytes.Contains(head, []byte("apiVersion")) || !bytes.Contains(head, []byte("kind"))) {
		return
	}
	head = bytes.TrimPrefix(head, []byte("\xef\xbb\xbf"))
	content := io.MultiReader(bytes.NewReader(head), r)
	trimmed := bytes.TrimLeft(head, " \t\r\n")
	if len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') {
		s.json(content, int64(n-len(head)), claimed)
		return
	}
	s.yaml(content, claimed)
}

func (s *scanner) json(r io.Reader, shift int64, claimed bool) {
	number := 0
	err := scanJSON(r, s.opts.MaxObjectBytes, func(item jsonItem) {
		number++
		s.add(item.header, item.err, number, claimed, func(e *entry) { e.offset, e.length = item.offset+shift, item.length })
	})
	if err == nil {
		return
	}
	if _, deep := errors.AsType[*depthError](err); deep {
		if claimed {
			s.report(ProblemHostileDocument, "%s: object %d is nested deeper than %d levels", s.path(), number+1, maxDepth)
		}
		return
	}
	if path.Ext(s.path()) != ".json" {
		// YAML may begin with a bracket, too.
		if again, openErr := s.store.open(s.store.files[s.file]); openErr == nil {
			defer again.Close() //nolint:errcheck // only read from
			s.result = scanned{}
			s.yaml(again, claimed)
			return
		}
	}
	if !claimed {
		return
	}
	var at *offsetError
	if errors.As(err, &at) {
		s.report(ProblemFileMalformed, "%s does not parse: object %d, line %d: %s", s.path(), number+1, s.lineOf(at.offset+shift), syntax(at.err))
		return
	}
	s.report(ProblemFileUnreadable, "%s cannot be read: %s", s.path(), reason(err))
}

// syntax leaves out the offset inside a value, which means nothing to a reader who was told the line.
func syntax(err error) string {
	if at, ok := errors.AsType[*syntaxError](err); ok {
		return at.what
	}
	return err.Error()
}

// lineOf counts lines up to an offset; mistakes are rare, so nobody counts before there is one.
func (s *scanner) lineOf(offset int64) int {
	r, err := s.store.open(s.store.files[s.file])
	if err != nil {
		return 0
	}
	defer r.Close() //nolint:errcheck // only read from
	line, buf := 1, make([]byte, streamChunk)
	limited := io.LimitReader(r, offset)
	for {
		n, err := limited.Read(buf)
		line += bytes.Count(buf[:n], []byte("\n"))
		if err != nil {
			return line
		}
	}
}

// yaml reads a YAML file, then decodes its documents one after another.
func (s *scanner) yaml(r io.Reader, claimed bool) {
	size := s.store.files[s.file].size
	if size > s.opts.MaxObjectBytes {
		s.heavy <- struct{}{}
		defer func() { <-s.heavy }()
	}
	data, err := io.ReadAll(io.LimitReader(r, s.opts.MaxFileBytes+1))
	switch {
	case err != nil:
		s.report(ProblemFileUnreadable, "%s cannot be read: %s", s.path(), reason(err))
		return
	case int64(len(data)) > s.opts.MaxFileBytes:
		if claimed {
			s.report(ProblemTooLarge, "%s is larger than the limit of %d MiB for a YAML file; split it, or export JSON", s.path(), s.opts.MaxFileBytes/mebibyte)
		}
		return
	}
	objects := 0
	for n, doc := range splitYAML(data) {
		at := yamlPlace{scanner: s, claimed: claimed, document: n + 1, line: doc.line, objects: &objects}
		before, twice := len(s.result.entries), []string(nil)
		if int64(len(doc.text)) > s.opts.MaxObjectBytes && !bytes.Contains(doc.text, []byte("List\n")) {
			at.tooLarge()
			continue
		}
		value, err := decodeYAML(doc, max(s.opts.MaxObjectBytes, 2*int64(len(doc.text))), func(line int, what string) {
			if claimed {
				twice = append(twice, fmt.Sprintf("%s, document %d, line %d: %s", s.path(), n+1, line, what))
				s.report(ProblemDuplicateKey, "%s", twice[len(twice)-1])
			}
		})
		switch {
		case err == nil:
			at.value(value, "", "", 0)
			s.saidTwice(before, twice)
		case claimed:
			at.malformed(err)
		default:
			s.result = scanned{} // some text file, after all
			return
		}
	}
}

// saidTwice gives the keys that a document gives twice to its object, so that its cluster is told. Of several objects nobody knows which it is.
func (s *scanner) saidTwice(entry int, twice []string) {
	if len(twice) == 0 || len(s.result.entries) != entry+1 {
		return
	}
	if s.result.twice == nil {
		s.result.twice = map[int][]string{}
	}
	s.result.twice[entry] = twice
}

// yamlPlace is the document of a YAML file that is being read.
type yamlPlace struct {
	*scanner
	claimed        bool
	document, line int
	// objects counts those of the file.
	objects *int
}

func (p yamlPlace) tooLarge() {
	p.report(ProblemTooLarge, "%s, document %d, line %d: the object is larger than the limit of %d MiB", p.path(), p.document, p.line, p.opts.MaxObjectBytes/mebibyte)
}

// malformed reports a document that cannot be decoded, and whether somebody meant it to do harm.
func (p yamlPlace) malformed(err error) {
	line, what := p.line, err.Error()
	if at, ok := errors.AsType[*lineError](err); ok {
		line, what = at.line, at.what
	}
	id := ProblemFileMalformed
	if _, deep := errors.AsType[*depthError](err); deep || errors.Is(err, errTooMuch) || strings.Contains(what, "aliasing") || strings.Contains(what, "max depth") {
		id = ProblemHostileDocument
	}
	p.report(id, "%s does not parse: document %d, line %d: %s", p.path(), p.document, line, what)
}

// value adds the objects of one decoded document; lists of objects are opened. Elements of typed lists, such as PodList, leave out
// kind and version; they get those of their list.
func (p yamlPlace) value(value any, apiVersion, kind string, level int) {
	const maxLists = 4
	if list, ok := value.([]any); ok && level < maxLists {
		for _, item := range list {
			p.value(item, apiVersion, kind, level+1)
		}
		return
	}
	raw, ok := value.(map[string]any)
	if !ok {
		return
	}
	if kind != "" && raw["kind"] == nil {
		raw["kind"] = kind
	}
	if apiVersion != "" && raw["apiVersion"] == nil {
		raw["apiVersion"] = apiVersion
	}
	if items, ok := raw["items"].([]any); ok && strings.HasSuffix(textAt(raw, "kind"), "List") && level < maxLists {
		itemKind, itemVersion := strings.TrimSuffix(textAt(raw, "kind"), "List"), textAt(raw, "apiVersion")
		if itemKind == "" {
			itemVersion = ""
		}
		p.value(items, itemVersion, itemKind, level)
		return
	}
	p.object(raw)
}

// object adds one object, kept as JSON in memory or, when there is no room, in the spool.
func (p yamlPlace) object(raw map[string]any) {
	if raw["apiVersion"] == nil && raw["kind"] == nil {
		return
	}
	*p.objects++
	encoded, err := encodeJSON(raw)
	if err != nil {
		p.report(ProblemFileMalformed, "%s does not parse: document %d, line %d: %s", p.path(), p.document, p.line, err)
		return
	}
	if int64(len(encoded)) > p.opts.MaxObjectBytes {
		p.tooLarge()
		return
	}
	found, err := piecesOf(string(encoded))
	var h header
	if err == nil {
		h, err = found.header()
	}
	p.add(h, err, *p.objects, p.claimed, func(e *entry) {
		if p.memory.take(int64(len(encoded))) {
			e.encoded = encoded
			return
		}
		offset, err := p.store.spool.write(encoded)
		if err != nil {
			p.report(ProblemFileUnreadable, "%s cannot be kept: %s", p.path(), reason(err))
		}
		e.spooled, e.offset, e.length = true, offset, int64(len(encoded))
	})
}

// add makes an entry of an object, unless it is none or belongs to this program.
func (s *scanner) add(h header, err error, number int, claimed bool, locate func(*entry)) {
	switch {
	case errors.Is(err, errNoObject):
		return
	case group(h.ref.APIVersion) == groupMigration && h.ref.Kind != "" && h.ref.Kind != "ClusterMigration":
		// Plans, reports and other snapshots' markers, which have no name and may be of any size.
		s.result.redacted = s.result.redacted || (h.ref.Kind == "Snapshot" && h.redacted)
		return
	case errors.Is(err, errTooLarge):
		s.report(ProblemTooLarge, "%s, object %d (%s) is larger than the limit of %d MiB", s.path(), number, h.ref, s.opts.MaxObjectBytes/mebibyte)
		return
	case err != nil:
		if !claimed {
			return
		}
		id := ProblemFileMalformed
		if errors.Is(err, errIncomplete) {
			id = ProblemObjectIncomplete
		} else if _, deep := errors.AsType[*depthError](err); deep {
			id = ProblemHostileDocument
		}
		s.report(id, "%s, object %d: %s", s.path(), number, syntax(err))
		return
	case !h.hasMetadata:
		if isLegacy(h.ref) {
			s.report(ProblemObjectIncomplete, "%s, object %d: %s has no metadata", s.path(), number, h.ref.Kind)
		}
		return
	}
	e := entry{ref: h.ref, home: homeOf(h), vmPod: isVMPod(h), file: s.file, item: number}
	locate(&e)
	s.result.entries = append(s.result.entries, e)
}

// budget is a number of bytes that several goroutines share.
type budget struct {
	mu   sync.Mutex
	left int64
}

func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < n {
		return false
	}
	b.left -= n
	return true
}

// interner keeps one copy of texts that repeat: in a fleet's index there are few different kinds and namespaces.
type interner map[string]string

func (in interner) text(s string) string {
	if known, ok := in[s]; ok {
		return known
	}
	in[s] = s
	return s
}

func (in interner) ref(r *Ref) {
	r.APIVersion, r.Kind, r.Namespace = in.text(r.APIVersion), in.text(r.Kind), in.text(r.Namespace)
}

// parallel calls work for every number below n, on as many goroutines as there are processors, and returns when all are done.
func parallel(n int, work func(i int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	if workers <= 1 {
		for i := range n {
			work(i)
		}
		return
	}
	var next sync.Mutex
	at := 0
	take := func() (int, bool) {
		next.Lock()
		defer next.Unlock()
		at++
		return at - 1, at <= n
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i, ok := take(); ok; i, ok = take() {
				work(i)
			}
		})
	}
	wg.Wait()
}

// byRef orders objects as pictures do.
func byRef(a, b Ref) int {
	return cmp.Or(cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
