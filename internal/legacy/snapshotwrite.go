package legacy

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

const (
	// SnapshotMarker is the file that makes a directory a snapshot.
	SnapshotMarker = "snapshot.json"
	// SnapshotAPIVersion is the version of the marker's format.
	SnapshotAPIVersion = groupMigration + "/v1alpha1"
	// SnapshotKind is the marker's kind.
	SnapshotKind = "Snapshot"

	managementFolder = "management-cluster"
)

// SnapshotOptions say what a snapshot holds.
type SnapshotOptions struct {
	// IncludeSecrets writes secret values in clear. Without it every secret value is a keyed digest.
	IncludeSecrets bool
	// ToolVersion is noted in the marker.
	ToolVersion string
}

// snapshotMarker is the content of the marker file.
type snapshotMarker struct {
	APIVersion  string   `json:"apiVersion"`
	Kind        string   `json:"kind"`
	ToolVersion string   `json:"toolVersion,omitempty"`
	Redacted    bool     `json:"redacted"`
	Clusters    []string `json:"clusters"`
}

// ErrTargetInUse tells that the target of a snapshot holds something else.
var ErrTargetInUse = errors.New("the target exists and is no snapshot")

// ErrDigestsOnly tells that secret values cannot be written in clear: the source is a redacted snapshot, which has only their digests.
var ErrDigestsOnly = errors.New("the source has only digests of its secret values")

// WriteSnapshot writes clusters to a directory, or to an archive when the target's name ends in .tar.gz or .tgz. Without ids it
// writes all clusters of the source. The steps: refuse a target that holds something else, write everything beside it under a
// temporary name, wait until it is on the disk, put it in place by renaming. Two snapshots of the same objects are equal byte for byte.
func WriteSnapshot(ctx context.Context, source Source, ids []string, target string, opts SnapshotOptions) error {
	target = filepath.Clean(target)
	if strings.HasSuffix(target, ".tar.gz") || strings.HasSuffix(target, ".tgz") {
		return writeArchiveFile(ctx, source, ids, target, opts)
	}
	replaced, err := checkTarget(target)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return fmt.Errorf("writing snapshot: %w", err)
	}
	work, err := os.MkdirTemp(filepath.Dir(target), "."+filepath.Base(target)+".tmp-*") // mode 0700
	if err != nil {
		return fmt.Errorf("writing snapshot: %w", err)
	}
	defer os.RemoveAll(work) //nolint:errcheck // gone already when all went well
	root, err := os.OpenRoot(work)
	if err != nil {
		return fmt.Errorf("writing snapshot: %w", err)
	}
	err = writeSnapshot(ctx, source, ids, opts, directorySink{root})
	if err == nil {
		err = syncTree(root)
	}
	if err = errors.Join(err, root.Close()); err != nil {
		return fmt.Errorf("writing snapshot: %w", err)
	}
	if replaced {
		err = replaceDirectory(work, target)
	} else {
		err = rename(work, target)
	}
	if err != nil {
		return fmt.Errorf("putting the snapshot in place: %w", err)
	}
	return nil
}

// replaceDirectory puts a directory in the place of another, which cannot be renamed over. Should the program die between the two
// renames, the old one is still there; it goes when the new one is in its place for good.
func replaceDirectory(work, target string) error {
	old, err := os.MkdirTemp(filepath.Dir(target), "."+filepath.Base(target)+".old-*")
	if err != nil {
		return err
	}
	kept := filepath.Join(old, "snapshot")
	if err := os.Rename(target, kept); err != nil {
		return errors.Join(err, os.Remove(old))
	}
	if err := os.Rename(work, target); err != nil {
		// Remove, not RemoveAll: what could not be put back must not be lost.
		return errors.Join(err, os.Rename(kept, target), os.Remove(old))
	}
	if err := syncDirectory(filepath.Dir(target)); err != nil {
		return err
	}
	os.RemoveAll(old) //nolint:errcheck,gosec // best effort; it is only a leftover
	return nil
}

// rename puts a file or a directory in its place for good.
func rename(work, target string) error {
	if err := os.Rename(work, target); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(target))
}

// syncDirectory waits until the names in a directory are on the disk.
func syncDirectory(name string) error {
	root, err := os.OpenRoot(name)
	if errors.Is(err, fs.ErrPermission) {
		return nil // one may write into a directory without reading it, but not sync it
	}
	if err != nil {
		return err
	}
	return errors.Join(syncEntry(root, "."), root.Close())
}

// syncTree waits until all files and directories below a root are on the disk. A file system may rename before it writes, and a
// power cut would then leave a snapshot with its name and without its content.
func syncTree(root *os.Root) error {
	return fs.WalkDir(root.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return syncEntry(root, name)
	})
}

// syncEntry waits until one file or directory is on the disk.
func syncEntry(root *os.Root, name string) error {
	opened, err := root.Open(name)
	if err != nil {
		return err
	}
	err = opened.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
		err = nil // some network file systems know no such thing for directories
	}
	return errors.Join(err, opened.Close())
}

// checkTarget tells whether a directory is in the way, and refuses it unless it is empty or a snapshot.
func checkTarget(target string) (inTheWay bool, err error) {
	entries, err := os.ReadDir(target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("writing snapshot: %w: %w", ErrTargetInUse, err)
	case len(entries) == 0:
		return true, nil
	}
	text, err := os.ReadFile(filepath.Join(target, SnapshotMarker))
	if err == nil && isMarker(text) {
		return true, nil
	}
	return false, fmt.Errorf("writing snapshot to %s: %w; choose another place", printable(filepath.Base(target)), ErrTargetInUse)
}

func isMarker(text []byte) bool {
	var marker snapshotMarker
	return json.Unmarshal(text, &marker) == nil && marker.Kind == SnapshotKind && strings.HasPrefix(marker.APIVersion, groupMigration+"/")
}

func writeArchiveFile(ctx context.Context, source Source, ids []string, target string, opts SnapshotOptions) (err error) {
	if err := checkArchive(target); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return fmt.Errorf("writing snapshot: %w", err)
	}
	work, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".tmp-*") // mode 0600
	if err != nil {
		return fmt.Errorf("writing snapshot: %w", err)
	}
	defer os.Remove(work.Name()) //nolint:errcheck // gone already when all went well
	err = WriteSnapshotArchive(ctx, source, ids, work, opts)
	if err == nil {
		err = work.Sync()
	}
	if err = errors.Join(err, work.Close()); err != nil {
		return err
	}
	if err := rename(work.Name(), target); err != nil {
		return fmt.Errorf("putting the snapshot in place: %w", err)
	}
	return nil
}

// checkArchive refuses to replace a file that is no snapshot archive: the marker is its first entry.
func checkArchive(target string) error {
	refused := fmt.Errorf("writing snapshot to %s: %w; choose another place", printable(filepath.Base(target)), ErrTargetInUse)
	existing, err := os.Open(target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return errors.Join(refused, err)
	}
	defer existing.Close() //nolint:errcheck // only read from
	if info, err := existing.Stat(); err != nil || !info.Mode().IsRegular() {
		return refused
	} else if info.Size() == 0 {
		return nil
	}
	unzipped, err := gzip.NewReader(existing)
	if err != nil {
		return refused
	}
	archive := tar.NewReader(unzipped)
	header, err := archive.Next()
	if err != nil || header.Name != SnapshotMarker {
		return refused
	}
	if text, err := io.ReadAll(io.LimitReader(archive, mebibyte)); err != nil || !isMarker(text) {
		return refused
	}
	return nil
}

// WriteSnapshotArchive writes clusters as a tar.gz archive.
func WriteSnapshotArchive(ctx context.Context, source Source, ids []string, w io.Writer, opts SnapshotOptions) error {
	zipped := gzip.NewWriter(w)
	archive := tar.NewWriter(zipped)
	err := writeSnapshot(ctx, source, ids, opts, archiveSink{archive})
	if err == nil {
		err = archive.Close()
	}
	if err == nil {
		err = zipped.Close()
	}
	if err != nil {
		return fmt.Errorf("writing snapshot: %w", err)
	}
	return nil
}

// sink takes the files of a snapshot.
type sink interface {
	put(name string, content []byte) error
}

type directorySink struct{ root *os.Root }

func (s directorySink) put(name string, content []byte) error {
	if err := s.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	return s.root.WriteFile(name, content, 0o600)
}

type archiveSink struct{ w *tar.Writer }

func (s archiveSink) put(name string, content []byte) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o600, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if err := s.w.WriteHeader(header); err != nil {
		return err
	}
	_, err := s.w.Write(content)
	return err
}

// manager is what sources of this package can say of the management cluster beyond Fleet.
type manager interface {
	managementObjects(ctx context.Context) ([]object, []finding.Finding, error)
}

// writeSnapshot writes the marker, the clusters one after another, and the management cluster last, because its records are
// redacted with the keys of the clusters they belong to.
func writeSnapshot(ctx context.Context, source Source, ids []string, opts SnapshotOptions, to sink) error {
	from, ok := source.(manager)
	if !ok {
		return errForeign
	}
	all, err := source.IDs(ctx)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		ids = all
	}
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	if redacted := redactedOf(source, ids); opts.IncludeSecrets && len(redacted) > 0 {
		return fmt.Errorf("cluster %s: %w", printable(redacted[0]), ErrDigestsOnly)
	}
	chosen := ids
	if slices.Equal(ids, all) {
		chosen = nil
	}
	w := &snapshotWriter{source: source, opts: opts, to: to, known: newCatalog(), digesters: map[string]*Digester{}}
	if err := w.marker(ids); err != nil {
		return err
	}
	for _, id := range ids {
		if err := w.cluster(ctx, id); err != nil {
			return err
		}
	}
	objects, _, err := from.managementObjects(ctx)
	if err != nil {
		return err
	}
	return w.management(objects, chosen)
}

// snapshotWriter writes the parts of one snapshot.
type snapshotWriter struct {
	source Source
	opts   SnapshotOptions
	to     sink
	known  catalog
	// digesters are the clusters', by id.
	digesters map[string]*Digester
}

// redactedOf lists the clusters of whose secret values the source has only digests.
func redactedOf(source Source, ids []string) []string {
	s, ok := source.(*snapshot)
	if !ok {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !s.isRedacted(id) })
}

// marker says what the snapshot is.
func (w *snapshotWriter) marker(ids []string) error {
	marker, err := json.MarshalIndent(snapshotMarker{SnapshotAPIVersion, SnapshotKind, w.opts.ToolVersion, !w.opts.IncludeSecrets, append([]string{}, ids...)}, "", "  ")
	if err != nil {
		return err
	}
	return w.to.put(SnapshotMarker, append(marker, '\n'))
}

// cluster writes the folder of one cluster, and what was seen inside it into a folder of its own.
func (w *snapshotWriter) cluster(ctx context.Context, id string) error {
	c, err := w.source.Load(ctx, id)
	if err != nil {
		return err
	}
	w.digesters[id] = c.Digester()
	mine, inside := c.objects()
	if !w.opts.IncludeSecrets {
		redactAll(newRedactor(w.digesters[id]), mine, inside)
	}
	if err := putObjects(w.to, w.known, folderOf(id), mine); err != nil || c.Inside == nil {
		return err
	}
	return putObjects(w.to, w.known, path.Join(folderOf(id), insideFolder), inside)
}

// management writes the folder of the management cluster; chosen are the clusters whose records it keeps, nil for all.
func (w *snapshotWriter) management(objects []object, chosen []string) error {
	for i := range objects {
		slim(objects[i].raw)
		if objects[i].ref.Kind == "StorageConfig" {
			redactStorageConfig(objects[i].raw, optionsOf(w.source).StorageConfig, w.digesters, chosen, w.opts.IncludeSecrets)
		} else if !w.opts.IncludeSecrets {
			newRedactor(&Digester{}).object(objects[i].raw)
		}
	}
	return putObjects(w.to, w.known, managementFolder, objects)
}

func optionsOf(source Source) Options {
	switch s := source.(type) {
	case *snapshot:
		return s.opts
	case *live:
		return s.opts
	}
	return Options{}.withDefaults()
}

// objects returns everything a picture was made of, except what all clusters share.
func (c *Cluster) objects() (mine, inside []object) {
	mine = appendOne(mine, c.Config)
	mine = appendOne(mine, c.ClusterConfig)
	mine = appendOne(mine, c.Flannel)
	mine = appendOne(mine, c.Encryption)
	mine = appendOne(mine, c.Kubeconfig)
	mine = appendOne(mine, c.Namespace)
	mine = appendAll(mine, c.CertConfigs)
	for _, certificate := range c.Certificates {
		mine = appendOne(mine, &certificate.Secret)
	}
	mine = appendAll(mine, c.Deployments)
	mine = appendAll(mine, c.ReplicaSets)
	mine = appendAll(mine, c.Pods)
	mine = appendAll(mine, c.ConfigMaps)
	mine = appendAll(mine, c.Services)
	mine = appendAll(mine, c.Endpoints)
	mine = appendAll(mine, c.Ingresses)
	mine = appendAll(mine, c.Claims)
	mine = appendAll(mine, c.ServiceAccounts)
	mine = appendAll(mine, c.Secrets)
	mine = appendAll(mine, c.Volumes)
	mine = appendAll(mine, c.RoleBindings)
	mine = appendAll(mine, c.Others)
	for _, existing := range c.Existing {
		mine = append(mine, object{ref: refOfRaw(existing.Object), raw: existing.Object})
	}
	if c.Inside != nil {
		inside = appendAll(inside, c.Inside.Nodes)
		inside = appendAll(inside, c.Inside.Objects)
	}
	return mine, inside
}

func appendOne[T any](list []object, doc *Doc[T]) []object {
	if doc == nil {
		return list
	}
	return append(list, object{ref: doc.Ref, origin: doc.Origin, raw: doc.Raw})
}

func appendAll[T any](list []object, docs []Doc[T]) []object {
	for i := range docs {
		list = appendOne(list, &docs[i])
	}
	return list
}

// redactAll learns the secret values of all objects before it redacts the first.
func redactAll(r *redactor, lists ...[]object) {
	for _, list := range lists {
		for _, o := range list {
			if isSecretObject(o) {
				r.learnSecret(o.raw)
			}
		}
	}
	r.ready()
	for _, list := range lists {
		parallel(len(list), func(i int) { r.object(list[i].raw) })
	}
}

func isSecretObject(o object) bool { return o.ref.Kind == "Secret" && o.ref.APIVersion == "v1" }

// redactStorageConfig drops the records of clusters that are not in the snapshot and redacts the others.
func redactStorageConfig(raw map[string]any, opts StorageConfigOptions, digesters map[string]*Digester, chosen []string, includeSecrets bool) {
	data, ok := valueAt(raw, "spec", "storage", "data").(map[string]any)
	if !ok {
		return
	}
	redactors := map[string]*redactor{"": newRedactor(&Digester{})}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		id, _ := opts.clusterOfKey(key)
		if chosen != nil && !slices.Contains(chosen, id) {
			delete(data, key)
			continue
		}
		text, isText := data[key].(string)
		if includeSecrets || !isText {
			continue
		}
		owner := ""
		if digesters[id] != nil {
			owner = id
		}
		if redactors[owner] == nil {
			redactors[owner] = newRedactor(digesters[owner])
		}
		data[key] = redactors[owner].record(key, text)
	}
	if !includeSecrets {
		if metadata, ok := raw["metadata"].(map[string]any); ok {
			// kubectl's copy of the object would repeat what was taken out.
			if annotations, ok := metadata["annotations"].(map[string]any); ok {
				delete(annotations, "kubectl.kubernetes.io/last-applied-configuration")
			}
		}
	}
}

// record redacts one entry of a StorageConfig; values are JSON in practice.
func (r *redactor) record(key, text string) string {
	if IsSecret(key, text) {
		return r.digester.Sum([]byte(text))
	}
	value, err := decodeJSON(text)
	if _, isText := value.(string); err != nil || isText {
		return r.settings(r.text(text))
	}
	before := mustJSON(value)
	value = r.walk("", value)
	if after := mustJSON(value); !bytes.Equal(before, after) {
		return string(after)
	}
	return r.text(text)
}

// slim takes out what no reader of a picture needs: who wrote which fields, and the schemas of custom resource definitions. Those of Cluster API alone are two
// megabytes, which would be kept and copied with every look at the management cluster.
func slim(raw map[string]any) {
	compactManagedFields(raw)
	if textAt(raw, "kind") != kindDefinition {
		return
	}
	spec, _ := raw["spec"].(map[string]any)
	delete(spec, "validation")
	versions, _ := spec["versions"].([]any)
	for _, version := range versions {
		if v, ok := version.(map[string]any); ok {
			delete(v, "schema")
		}
	}
}

// putObjects writes one file per kind, one object per line: quick to index, and readable in a diff.
func putObjects(to sink, known catalog, folder string, objects []object) error {
	files := map[string][]object{}
	for _, o := range objects {
		k, found := known.of(o.ref)
		name := k.plural
		if !found {
			name = fileName(strings.Trim(k.plural+"."+group(o.ref.APIVersion), "."))
		}
		files[name] = append(files[name], o)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		list := files[name]
		slices.SortStableFunc(list, func(a, b object) int {
			return cmp.Or(byRef(a.ref, b.ref), cmp.Compare(a.ref.UID, b.ref.UID), cmp.Compare(a.origin, b.origin))
		})
		var b bytes.Buffer
		b.WriteString(`{"apiVersion":"v1","kind":"List","items":[`)
		for i, o := range list {
			compactManagedFields(o.raw)
			line, err := encodeJSON(o.raw)
			if err != nil {
				return err
			}
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteByte('\n')
			b.Write(line)
		}
		b.WriteString("\n]}\n")
		if err := to.put(path.Join(folder, name+".json"), b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// folderOf names the folder of a cluster. An id that is no valid name may be anything, also a path out of the snapshot.
func folderOf(id string) string {
	if len(validation.IsDNS1123Label(id)) == 0 && id != managementFolder && id != insideFolder {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "cluster-" + hex.EncodeToString(sum[:8])
}

// fileName makes a kind that nobody checked a file name.
func fileName(name string) string {
	name = strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '-' {
			return c
		}
		return '_'
	}, strings.ToLower(name))
	const longest = 128
	return name[:min(len(name), longest)]
}
