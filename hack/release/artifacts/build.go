package artifacts

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// Names of the files that clusterctl asks for.
const (
	ComponentsFile = "infrastructure-components.yaml"
	MetadataFile   = "metadata.yaml"
)

// AutoscalerFile sizes the manager's pod. clusterctl does not install it: not every management cluster has the kind.
const AutoscalerFile = "vertical-pod-autoscaler.yaml"

// Files are the files of a release by name.
type Files map[string][]byte

// ErrVersion says that a version is none.
var ErrVersion = errors.New("want a version such as v0.1.0")

var (
	versions = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)
	// images of the provider itself, wherever a manifest names one: as a container's image or in an argument.
	images = regexp.MustCompile(`(ghcr\.io/giantswarm/cluster-api-provider-kvm-[a-z-]+)(:[A-Za-z0-9_.-]+|@sha256:[0-9a-f]+)?`)
)

// Build makes all files of a release. Steps: render the components and tag their images; render the autoscaler; take metadata and templates as they are;
// verify everything.
func Build(root, version string) (Files, error) {
	if !versions.MatchString(version) {
		return nil, fmt.Errorf("%q: %w", version, ErrVersion)
	}
	components, err := Components(root, version)
	if err != nil {
		return nil, err
	}
	autoscaler, err := Render(filepath.Join(root, "config", "vpa"))
	if err != nil {
		return nil, err
	}
	files := Files{ComponentsFile: components}
	if files[AutoscalerFile], err = Encode(autoscaler); err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(root, "templates", "cluster*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("listing the templates: %w", err)
	}
	for _, path := range append(paths, filepath.Join(root, MetadataFile)) {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading a file of the release: %w", err)
		}
		files[filepath.Base(path)] = raw
	}
	return files, Verify(files, version)
}

// Components renders config/default with the provider's images at a version.
func Components(root, version string) ([]byte, error) {
	objects, err := Render(filepath.Join(root, "config", "default"))
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if o.GetKind() == "Deployment" {
			o.Object = retag(o.Object, version).(map[string]any) //nolint:forcetypeassert // A map stays a map.
		}
	}
	return Encode(objects)
}

// Render does what `kustomize build` does.
func Render(dir string) ([]*unstructured.Unstructured, error) {
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("rendering %s: %w", dir, err)
	}
	objects := make([]*unstructured.Unstructured, 0, rendered.Size())
	for _, r := range rendered.Resources() {
		// By way of JSON, because unstructured objects have the numbers of the API machinery's decoder.
		raw, err := r.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("rendering %s: %s: %w", dir, r.CurId(), err)
		}
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON(raw); err != nil {
			return nil, fmt.Errorf("rendering %s: %s: %w", dir, r.CurId(), err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// Encode writes objects as one YAML stream.
func Encode(objects []*unstructured.Unstructured) ([]byte, error) {
	var all []byte
	for _, o := range objects {
		raw, err := yaml.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("encoding %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		all = append(append(all, "---\n"...), raw...)
	}
	return all, nil
}

// retag gives the provider's images a tag, in whatever text they are named.
func retag(value any, tag string) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = retag(v[key], tag)
		}
	case []any:
		for i := range v {
			v[i] = retag(v[i], tag)
		}
	case string:
		return images.ReplaceAllString(v, "${1}:"+tag)
	}
	return value
}

// Write writes the files into a directory and returns their paths.
func (f Files) Write(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // What is released is public.
		return nil, fmt.Errorf("creating %s: %w", dir, err)
	}
	var paths []string
	for _, name := range slices.Sorted(maps.Keys(f)) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, f[name], 0o644); err != nil { //nolint:gosec // What is released is public.
			return nil, fmt.Errorf("writing a file of the release: %w", err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}
