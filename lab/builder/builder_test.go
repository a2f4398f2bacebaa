package builder_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
)

func program(name, source string) builder.Component {
	return builder.Component{Name: name, Version: "v1", Program: source}
}

const hello = "package main\n\nfunc main() { println(\"hello\") }\n"

// lockedBuffer is a buffer that two builders may write to.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func newBuilder(t *testing.T, opts builder.Options) *builder.Builder {
	t.Helper()
	b, err := builder.New(opts)
	require.NoError(t, err)
	return b
}

func TestComponentIsBuiltOnceByTwoBuilders(t *testing.T) {
	t.Parallel()
	var out lockedBuffer
	opts := builder.Options{Cache: t.TempDir(), Out: &out, Components: []builder.Component{program("hello", hello)}}
	var wg sync.WaitGroup
	paths := make([]string, 2)
	for i := range paths {
		wg.Go(func() {
			b, err := builder.New(opts)
			if !assert.NoError(t, err) { //nolint:testifylint // require must not be called outside the test's goroutine.
				return
			}
			assets, err := b.Ensure(t.Context())
			assert.NoError(t, err)
			paths[i] = assets["hello"]
		})
	}
	wg.Wait()

	assert.Equal(t, 1, strings.Count(out.String(), "done in"), out.String())
	assert.Equal(t, paths[0], paths[1])
	assert.FileExists(t, paths[0])
	left, err := filepath.Glob(filepath.Join(opts.Cache, "tmp-*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestCompilerErrorsAreShown(t *testing.T) {
	t.Parallel()
	var out lockedBuffer
	opts := builder.Options{
		Cache: t.TempDir(), Out: &out,
		Components: []builder.Component{program("broken", "package main\n\nfunc main() { undefinedThing() }\n")},
	}

	_, err := newBuilder(t, opts).Ensure(t.Context())

	var failed *builder.BuildError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, "broken", failed.Component)
	assert.Contains(t, failed.Tail, "undefined: undefinedThing")
	assert.FileExists(t, failed.Log)
	require.ErrorContains(t, err, failed.Log)
	assert.Contains(t, out.String(), "failed after")
	bins, globErr := filepath.Glob(filepath.Join(opts.Cache, "bin", "*", "*"))
	require.NoError(t, globErr)
	assert.Empty(t, bins, "a failed build leaves nothing that looks finished")
}

func TestChangedRecipeIsBuiltAgain(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	first, err := newBuilder(t, builder.Options{Cache: cache, Components: []builder.Component{program("x", hello)}}).Ensure(t.Context())
	require.NoError(t, err)

	second, err := newBuilder(t, builder.Options{
		Cache: cache, Components: []builder.Component{program("x", strings.Replace(hello, "hello", "bye", 1))},
	}).Ensure(t.Context())

	require.NoError(t, err)
	assert.NotEqual(t, first["x"], second["x"])
}

func TestGivenBinariesArePreferred(t *testing.T) {
	t.Parallel()
	assets := t.TempDir()
	given := filepath.Join(assets, "etcd")
	require.NoError(t, os.WriteFile(given, []byte("#!/bin/sh\n"), 0o700))

	found, err := newBuilder(t, builder.Options{Cache: t.TempDir(), Assets: assets}).Ensure(t.Context(), builder.Etcd)

	require.NoError(t, err)
	assert.Equal(t, given, found[builder.Etcd])
}

func TestUnknownComponentIsRefused(t *testing.T) {
	t.Parallel()
	_, err := newBuilder(t, builder.Options{Cache: t.TempDir()}).Ensure(t.Context(), "kube-foo")

	var unknown *builder.UnknownError
	require.ErrorAs(t, err, &unknown)
	require.ErrorContains(t, err, "kube-apiserver")
}

func TestCacheDirectoryComesFromTheEnvironment(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(builder.CacheEnv, dir)

	assert.Equal(t, dir, newBuilder(t, builder.Options{}).Cache())

	t.Setenv(builder.CacheEnv, "")
	t.Setenv("XDG_CACHE_HOME", dir)
	assert.Equal(t, filepath.Join(dir, "cluster-api-provider-kvm"), newBuilder(t, builder.Options{}).Cache())
}
