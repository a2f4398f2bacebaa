package migrate

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// lacks names the first thing of the wanted CustomResourceDefinition that the other one does not know, as "v1alpha1 .status.savedEtcd"; empty when there is
// none. What it knows besides does not count.
func lacks(have, want *unstructured.Unstructured) string {
	for name, wanted := range versions(want) {
		found, known := versions(have)[name]
		if !known {
			return name
		}
		if path := lacksOf(found, wanted, ""); path != "" {
			return name + " " + path
		}
	}
	return ""
}

// versions are the schemas of a CustomResourceDefinition, by the names of its versions.
func versions(definition *unstructured.Unstructured) map[string]map[string]any {
	schemas := map[string]map[string]any{}
	list, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil {
		return schemas
	}
	for _, entry := range list {
		version, _ := entry.(map[string]any)
		name, _, _ := unstructured.NestedString(version, "name")
		schema, _, _ := unstructured.NestedMap(version, "schema", "openAPIV3Schema")
		schemas[name] = schema
	}
	return schemas
}

// lacksOf goes down a wanted schema as an API server does when it prunes: by properties, items and additionalProperties, and by the values of an enum, which it
// would refuse.
func lacksOf(have, want map[string]any, path string) string {
	properties, _ := want["properties"].(map[string]any)
	known, _ := have["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if _, there := known[name]; !there {
			return path + "." + name
		}
		if below := lacksIn(known[name], properties[name], path+"."+name); below != "" {
			return below
		}
	}
	for key, sign := range map[string]string{"items": "[]", "additionalProperties": "{}"} {
		if below := lacksIn(have[key], want[key], path+sign); below != "" {
			return below
		}
	}
	values, _ := want["enum"].([]any)
	allowed, _ := have["enum"].([]any)
	for _, value := range values {
		if len(allowed) > 0 && !slices.Contains(allowed, value) {
			return fmt.Sprintf("%s=%v", path, value)
		}
	}
	return ""
}

func lacksIn(have, want any, path string) string {
	wanted, is := want.(map[string]any)
	if !is {
		return ""
	}
	found, is := have.(map[string]any)
	if !is {
		return path
	}
	return lacksOf(found, wanted, path)
}
