package legacy

import (
	"encoding/json"
	"fmt"
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
	if decoder, ok := reflect.New(t).Interface().(json.Unmarshaler); ok {
		text, err := encodeJSON(value)
		if err == nil {
			err = decoder.UnmarshalJSON(text)
		}
		if err != nil {
			report(path, "unusable "+describe(value))
			return dropped{}
		}
		return value
	}
	wrong := func(want string) any {
		report(path, fmt.Sprintf("expected %s, found %s", want, describe(value)))
		return dropped{}
	}
	switch t.Kind() {
	case reflect.Struct:
		object, ok := value.(map[string]any)
		if !ok {
			return wrong("an object")
		}
		return fitStruct(object, t, path, report)
	case reflect.Map:
		object, ok := value.(map[string]any)
		if !ok {
			return wrong("an object")
		}
		out := make(map[string]any, len(object))
		for key, item := range object {
			if kept := fit(item, t.Elem(), path+"["+key+"]", report); kept != (dropped{}) {
				out[key] = kept
			}
		}
		return out
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			if _, ok := value.(string); !ok {
				return wrong("base64 text")
			}
			if err := json.Unmarshal(mustJSON(value), new([]byte)); err != nil {
				return wrong("base64 text")
			}
			return value
		}
		list, ok := value.([]any)
		if !ok {
			return wrong("a list")
		}
		out := make([]any, 0, len(list))
		for i, item := range list {
			kept := fit(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i), report)
			if kept == (dropped{}) {
				kept = nil // the position of the others must stay
			}
			out = append(out, kept)
		}
		return out
	case reflect.String:
		if _, ok := value.(string); !ok {
			return wrong("text")
		}
	case reflect.Bool:
		if _, ok := value.(bool); !ok {
			return wrong("true or false")
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, ok := value.(int64)
		if !ok {
			return wrong("a whole number")
		}
		if zero := reflect.New(t).Elem(); (zero.CanInt() && zero.OverflowInt(n)) || (zero.CanUint() && (n < 0 || zero.OverflowUint(uint64(n)))) {
			return wrong("a number within the range of " + t.Kind().String())
		}
	case reflect.Float32, reflect.Float64:
		switch value.(type) {
		case int64, float64:
		default:
			return wrong("a number")
		}
	}
	return value
}

func fitStruct(object map[string]any, t reflect.Type, path string, report func(path, what string)) any {
	out := make(map[string]any, len(object))
	for key, item := range object {
		out[key] = item
	}
	for i := range t.NumField() {
		field := t.Field(i)
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
