package history

import (
	"reflect"

	"github.com/invopop/jsonschema"
)

// Schema is the JSON Schema of an event, a line of the log, from the type itself.
func Schema() *jsonschema.Schema {
	kinds := make([]any, 0, len(EventTypes()))
	for _, kind := range EventTypes() {
		kinds = append(kinds, string(kind))
	}
	r := &jsonschema.Reflector{DoNotReference: true, Anonymous: true, Mapper: func(t reflect.Type) *jsonschema.Schema {
		if t == reflect.TypeFor[EventType]() {
			return &jsonschema.Schema{Type: "string", Enum: kinds, Description: "What the event tells."}
		}
		return nil
	}}
	schema := r.Reflect(&Event{})
	schema.Title = "Event"
	return schema
}
