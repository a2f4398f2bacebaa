package legacy

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// typed decodes a raw object. Fields of the wrong type are left zero and reported by report(path, what); the rest is decoded.
func typed[T any](o object, report func(path, what string)) Doc[T] {
	doc := Doc[T]{Ref: o.ref, Origin: o.origin, Raw: o.raw}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.raw, &doc.Object); err == nil {
		return doc
	}
	// Something does not fit. Take out what is wrong and decode again, so that one bad field does not hide the others.
	var zero T
	doc.Object = zero
	fitting, _ := fit(o.raw, reflect.TypeFor[T](), "", report).(map[string]any)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fitting, &doc.Object); err != nil {
		doc.Object = zero
		report("", err.Error())
	}
	return doc
}

// dropped marks a value that does not fit.
type dropped struct{}

// fit returns the part of a value that can be decoded into a type.
func fit(value any, t reflect.Type, path string, report func(path, what string)) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if value == nil {
		return nil
	}
	zero := reflect.New(t)
	misfit := ""
	switch decoder, decodes := zero.Interface().(json.Unmarshaler); {
	case decodes:
		if !decodable(decoder, value) {
			report(path, "unusable "+describe(value))
			return dropped{}
		}
	case t.Kind() == reflect.Struct:
		if object, ok := value.(map[string]any); ok {
			return fitStruct(object, t, path, report)
		}
		misfit = "an object"
	case t.Kind() == reflect.Map:
		if object, ok := value.(map[string]any); ok {
			return fitMap(object, t.Elem(), path, report)
		}
		misfit = "an object"
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		if list, ok := value.([]any); ok {
			return fitList(list, t.Elem(), path, report)
		}
		misfit = "a list"
	default:
		misfit = misfitOf(value, zero.Elem())
	}
	if misfit != "" {
		report(path, fmt.Sprintf("expected %s, found %s", misfit, describe(value)))
		return dropped{}
	}
	return value
}

// decodable asks a type that decodes itself.
func decodable(decoder json.Unmarshaler, value any) bool {
	text, err := encodeJSON(value)
	return err == nil && decoder.UnmarshalJSON(text) == nil
}

// misfitOf says what a single value should be; nothing when it is that.
func misfitOf(value any, into reflect.Value) string {
	switch text, isText := value.(string); {
	case into.Kind() == reflect.Slice:
		if !isText || json.Unmarshal(mustJSON(text), new([]byte)) != nil {
			return "base64 text"
		}
	case into.Kind() == reflect.String && !isText:
		return "text"
	case into.Kind() == reflect.Bool:
		if _, ok := value.(bool); !ok {
			return "true or false"
		}
	case into.CanInt(), into.CanUint():
		return misfitOfNumber(value, into)
	case into.CanFloat():
		switch value.(type) {
		case int64, float64:
		default:
			return "a number"
		}
	}
	return ""
}

func misfitOfNumber(value any, into reflect.Value) string {
	n, ok := value.(int64)
	if !ok {
		return "a whole number"
	}
	if (into.CanInt() && into.OverflowInt(n)) || (into.CanUint() && (n < 0 || into.OverflowUint(uint64(n)))) {
		return "a number within the range of " + into.Kind().String()
	}
	return ""
}

func fitMap(object map[string]any, t reflect.Type, path string, report func(path, what string)) any {
	out := make(map[string]any, len(object))
	for key, item := range object {
		if kept := fit(item, t, path+"["+key+"]", report); kept != (dropped{}) {
			out[key] = kept
		}
	}
	return out
}

func fitList(list []any, t reflect.Type, path string, report func(path, what string)) any {
	out := make([]any, 0, len(list))
	for i, item := range list {
		kept := fit(item, t, fmt.Sprintf("%s[%d]", path, i), report)
		if kept == (dropped{}) {
			kept = nil // the position of the others must stay
		}
		out = append(out, kept)
	}
	return out
}

func fitStruct(object map[string]any, t reflect.Type, path string, report func(path, what string)) any {
	out := maps.Clone(object)
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" || !field.IsExported() {
			continue
		}
		if name == "" {
			if field.Anonymous || strings.Contains(options, "inline") {
				if embedded, ok := fit(out, field.Type, path, report).(map[string]any); ok {
					out = embedded
				}
			}
			continue
		}
		item, found := object[name]
		if !found {
			continue
		}
		at := name
		if path != "" {
			at = path + "." + name
		}
		if kept := fit(item, field.Type, at, report); kept == (dropped{}) {
			delete(out, name)
		} else {
			out[name] = kept
		}
	}
	return out
}

// describe names a value without showing it: it may be secret.
func describe(value any) string {
	switch v := value.(type) {
	case string:
		return fmt.Sprintf("text of %d characters", len(v))
	case int64, float64:
		return "a number"
	case bool:
		return "true or false"
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	default:
		return "nothing"
	}
}

func mustJSON(value any) []byte {
	text, err := encodeJSON(value)
	if err != nil {
		return nil
	}
	return text
}
