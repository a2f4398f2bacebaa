package playbook

import (
	"reflect"

	"github.com/invopop/jsonschema"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
)

// Schema is the JSON Schema of a playbook, from the types themselves.
func Schema() *jsonschema.Schema { return SchemaOf(&Playbook{}, Kind) }

// SchemaOf is the JSON Schema of a document of a kind, which is read with ReadDocument.
func SchemaOf(document any, kind string) *jsonschema.Schema {
	texts := map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[Duration](): {Type: "string", Pattern: `^([0-9]+d|([0-9]+(\.[0-9]+)?(h|m|s|ms))+|0)$`, Description: "A length of time, like 45m, 8h or 14d."},
		reflect.TypeFor[Reserve]():  {Type: "string", Pattern: `^(learnt|[0-9]+d|([0-9]+(\.[0-9]+)?(h|m|s|ms))+|0)$`, Description: "A length of time, like 45m, or learnt."},
		reflect.TypeFor[Cron]():     {Type: "string", Description: "minute, hour, day-of-month, month, day-of-week"},
		reflect.TypeFor[Rule]():     {Type: "string", Description: "An RRULE of RFC 5545."},
		reflect.TypeFor[Local]():    {Type: "string", Pattern: `^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2})?$`, Description: "A day, or a time of a day."},
	}
	r := &jsonschema.Reflector{Mapper: func(t reflect.Type) *jsonschema.Schema {
		if texts[t] == nil {
			return nil
		}
		// Each field writes its own description into what it is given.
		own := *texts[t]
		return &own
	}, DoNotReference: true, Anonymous: true}
	schema := r.Reflect(document)
	schema.Title = kind
	// The library knows no const for text.
	for name, value := range map[string]string{"apiVersion": migrationv1alpha1.APIVersion, "kind": kind} {
		if property, found := schema.Properties.Get(name); found {
			property.Const = value
		}
	}
	return schema
}
