package manifest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

type runtimeObject = runtime.Object

// Kustomization is the part of a kustomization file that is honoured.
type Kustomization struct {
	Namespace  string `json:"namespace"`
	NamePrefix string `json:"namePrefix"`
	Labels     []struct {
		Pairs map[string]string `json:"pairs"`
	} `json:"labels"`
	CommonLabels map[string]string `json:"commonLabels"`
}

// ReadKustomization reads kustomization.yaml of a directory. A directory
// without one has an empty kustomization.
func ReadKustomization(dir string) (Kustomization, error) {
	var k Kustomization
	raw, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return k, fmt.Errorf("reading a kustomization: %w", err)
	}
	if err := yaml.Unmarshal(raw, &k); err != nil {
		return k, fmt.Errorf("reading the kustomization of %s: %w", dir, err)
	}
	return k, nil
}

// AllLabels returns the labels the kustomization adds to every object.
func (k Kustomization) AllLabels() map[string]string {
	all := map[string]string{}
	maps.Copy(all, k.CommonLabels)
	for _, l := range k.Labels {
		maps.Copy(all, l.Pairs)
	}
	return all
}

// AddLabels adds labels to an object.
func AddLabels(obj *unstructured.Unstructured, labels map[string]string) {
	all := obj.GetLabels()
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, labels)
	obj.SetLabels(all)
}

// Merge merges each patch into the object of the same kind and name.
func Merge(objects, patches []*unstructured.Unstructured) {
	for _, p := range patches {
		for _, o := range objects {
			if o.GetKind() == p.GetKind() && o.GetName() == p.GetName() {
				merge(o.Object, p.Object)
			}
		}
	}
}

func merge(into, from map[string]any) {
	for k, v := range from {
		a, okA := into[k].(map[string]any)
		b, okB := v.(map[string]any)
		if okA && okB {
			merge(a, b)
			continue
		}
		into[k] = v
	}
}

// Apply gives objects the namespace, name prefix and labels of a kustomization.
// References between RBAC objects follow the new names, those to roles that are
// not among the objects (system roles) stay.
func (k Kustomization) Apply(objects []*unstructured.Unstructured) error {
	own := map[string]bool{}
	for _, o := range objects {
		own[o.GetKind()+"/"+o.GetName()] = true
	}
	for _, o := range objects {
		o.SetName(k.NamePrefix + o.GetName())
		if o.GetNamespace() != "" || namespacedRBAC(o.GetKind()) {
			o.SetNamespace(k.Namespace)
		}
		AddLabels(o, k.AllLabels())
		if err := k.applyReferences(o, own); err != nil {
			return fmt.Errorf("renaming what %s %s refers to: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// namespacedRBAC says which kinds get a namespace though their file names none.
func namespacedRBAC(kind string) bool {
	return kind == "Role" || kind == "RoleBinding" || kind == "ServiceAccount"
}

func (k Kustomization) applyReferences(o *unstructured.Unstructured, own map[string]bool) error {
	role, found, err := unstructured.NestedStringMap(o.Object, "roleRef")
	if err != nil {
		return err
	}
	if found && own[role["kind"]+"/"+role["name"]] {
		role["name"] = k.NamePrefix + role["name"]
		if err := unstructured.SetNestedStringMap(o.Object, role, "roleRef"); err != nil {
			return err
		}
	}
	subjects, found, err := unstructured.NestedSlice(o.Object, "subjects")
	if err != nil || !found {
		return err
	}
	for _, s := range subjects {
		subject, ok := s.(map[string]any)
		if !ok || subject["kind"] != "ServiceAccount" {
			continue
		}
		name, _ := subject["name"].(string)
		if own["ServiceAccount/"+name] {
			subject["name"] = k.NamePrefix + name
			subject["namespace"] = k.Namespace
		}
	}
	return unstructured.SetNestedSlice(o.Object, subjects, "subjects")
}
