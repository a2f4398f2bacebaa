package main

import (
	"go/parser"
	"go/token"
	"strconv"
	"syscall"
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

// TestSignalsEndTheProgramInTwoSteps: systemd and kubelets say SIGTERM, people Ctrl-C. Signals reach the whole process.
func TestSignalsEndTheProgramInTwoSteps(t *testing.T) {
	for _, first := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		soft, hard, stop := interruptible()
		require.NoError(t, soft.Err())
		require.NoError(t, syscall.Kill(syscall.Getpid(), first))
		<-soft.Done()
		require.NoError(t, hard.Err(), "the first one lets a step come to a safe end")
		require.NoError(t, syscall.Kill(syscall.Getpid(), syscall.SIGTERM))
		<-hard.Done()
		stop()
	}
}
