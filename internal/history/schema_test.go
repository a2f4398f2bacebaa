package history

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEveryEventIsOfTheSchema, and the schema is strict.
func TestEveryEventIsOfTheSchema(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(Schema())
	require.NoError(t, err)
	parsed, err := validator.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	compiler := validator.NewCompiler()
	require.NoError(t, compiler.AddResource("event.json", parsed))
	schema, err := compiler.Compile("event.json")
	require.NoError(t, err)
	valid := func(line string) error {
		document, err := validator.UnmarshalJSON(strings.NewReader(line))
		require.NoError(t, err)
		return schema.Validate(document)
	}
	for i, kind := range EventTypes() {
		line, err := json.Marshal(Event{V: EventVersion, Seq: i + 1, TS: time.Unix(0, 0).UTC(), Type: kind, Run: "r", Cluster: "c", Phase: "p", Step: "p/s", By: "b", Tool: "t", Took: "1s", Message: "m", Class: "other"})
		require.NoError(t, err)
		assert.NoError(t, valid(string(line)))
	}
	require.NoError(t, valid(`{"v":1,"seq":1,"ts":"2026-11-21T21:00:00Z","type":"run.started","run":"r","cluster":"c"}`))
	for _, wrong := range []string{
		`{"v":1,"seq":0,"ts":"2026-11-21T21:00:00Z","type":"run.started","run":"r","cluster":"c"}`,
		`{"v":1,"seq":1,"ts":"2026-11-21T21:00:00Z","type":"run.begun","run":"r","cluster":"c"}`,
		`{"v":1,"seq":1,"ts":"2026-11-21T21:00:00Z","type":"run.started","run":"r"}`,
		`{"v":1,"seq":1,"ts":"2026-11-21T21:00:00Z","type":"run.started","run":"r","cluster":"c","more":1}`,
	} {
		assert.Error(t, valid(wrong), wrong)
	}
}
