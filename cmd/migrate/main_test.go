package main

import (
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestZoneDataAreInsideTheProgram: where it is alone in an image nobody else has any, and a playbook could not be read there. A test that loads a zone would find the machine's own.
func TestZoneDataAreInsideTheProgram(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "main.go", nil, parser.ImportsOnly)
	require.NoError(t, err)
	var imports []string
	for _, spec := range file.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		require.NoError(t, err)
		imports = append(imports, name)
	}
	assert.Contains(t, imports, "time/tzdata")
}
