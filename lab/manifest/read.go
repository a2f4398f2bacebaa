package manifest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Parse returns the objects of a YAML stream; documents without a kind are
// left out, items of a List are returned one by one.
func Parse(raw []byte) ([]*unstructured.Unstructured, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw)))
	var objects []*unstructured.Unstructured
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("splitting YAML documents: %w", err)
		}
		content := map[string]any{}
		// JSON rules (numbers, keys) are those of the API server.
		if err := yaml.Unmarshal(doc, &content); err != nil {
			return nil, fmt.Errorf("parsing YAML: %w", err)
		}
		obj := &unstructured.Unstructured{Object: normalise(content).(map[string]any)} //nolint:forcetypeassert // A map stays a map.
		if obj.GetKind() == "" {
			continue
		}
		if !obj.IsList() {
			objects = append(objects, obj)
			continue
		}
		err = obj.EachListItem(func(item runtimeObject) error {
			objects = append(objects, item.(*unstructured.Unstructured)) //nolint:forcetypeassert // Items of an unstructured list.
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("reading the items of a %s: %w", obj.GetKind(), err)
		}
	}
}

// ReadFile returns the objects of one file.
func ReadFile(path string) ([]*unstructured.Unstructured, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading objects: %w", err)
	}
	objects, err := Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("reading objects of %s: %w", path, err)
	}
	return objects, nil
}

// ReadDir returns the objects of all YAML files directly in a directory, file
// by file in the order of their names.
func ReadDir(dir string) ([]*unstructured.Unstructured, error) {
	var files []string
	for _, pattern := range []string{"*.yaml", "*.yml"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", dir, err)
		}
		files = append(files, found...)
	}
	slices.Sort(files)
	if len(files) == 0 {
		// A misspelled path must not look like an empty set of objects.
		return nil, fmt.Errorf("reading objects: no YAML files in %s", dir)
	}
	var objects []*unstructured.Unstructured
	for _, f := range files {
		found, err := ReadFile(f)
		if err != nil {
			return nil, err
		}
		objects = append(objects, found...)
	}
	return objects, nil
}

// normalise turns whole float64 numbers into int64, as the API machinery's own
// decoder does: unstructured objects with other number types cannot be copied.
func normalise(v any) any {
	switch x := v.(type) {
	case map[string]any:
		for k := range x {
			x[k] = normalise(x[k])
		}
	case []any:
		for i := range x {
			x[i] = normalise(x[i])
		}
	case float64:
		if x == float64(int64(x)) {
			return int64(x)
		}
	}
	return v
}
