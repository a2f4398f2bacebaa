package webhooks

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// unchanged reports every field of a spec that differs, with its old value and what to do instead.
func unchanged(at *field.Path, before, after any, advice string) field.ErrorList {
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	old, err := runtime.DefaultUnstructuredConverter.ToUnstructured(before)
	if err != nil {
		return field.ErrorList{field.InternalError(at, err)}
	}
	now, err := runtime.DefaultUnstructuredConverter.ToUnstructured(after)
	if err != nil {
		return field.ErrorList{field.InternalError(at, err)}
	}
	return differences(at, old, now, advice)
}

func differences(at *field.Path, before, after any, advice string) field.ErrorList {
	old, isMap := before.(map[string]any)
	now, bothMaps := after.(map[string]any)
	if isMap && bothMaps {
		keys := sortedKeys(union(old, now))
		problems := make(field.ErrorList, 0, len(keys))
		for _, key := range keys {
			problems = append(problems, differences(at.Child(key), old[key], now[key], advice)...)
		}
		return problems
	}
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	return field.ErrorList{field.Invalid(at, after, fmt.Sprintf("cannot change, it is %s; %s", shown(before), advice))}
}

func union(a, b map[string]any) map[string]bool {
	keys := map[string]bool{}
	for key := range a {
		keys[key] = true
	}
	for key := range b {
		keys[key] = true
	}
	return keys
}

// shown writes a value for people.
func shown(value any) string {
	switch v := value.(type) {
	case nil:
		return "unset"
	case string:
		return strconv.Quote(v)
	default:
		return fmt.Sprint(v)
	}
}
