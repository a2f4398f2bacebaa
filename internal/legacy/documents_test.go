package legacy

import (
	"fmt"
	"net/url"
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConfigurationFilesAreDecoded(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]map[string]any{
		`{"a": {"b": 1}}`:     {"a": map[string]any{"b": float64(1)}},
		"a:\n  b: [yes, 1]\n": {"a": map[string]any{"b": []any{true, int64(1)}}},
		"- a\n":               nil,
		"a: [":                nil,
		"{broken":             nil,
		"":                    nil,
		// Aliases that would unpack to gigabytes.
		"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d,*d]\n": nil,
	} {
		ignition, complaints, err := DecodeIgnition(userData(fmt.Sprintf(`{"ignition":{"version":"2.3.0"},"storage":{"files":[
			{"path":%q,"contents":{"source":"data:,%s"}}, {"path":"/etc/motd","contents":{"source":"data:,%s"}}]}}`, FileKubelet, url.PathEscape(content), url.PathEscape(content))), 0)
		require.NoError(t, err)
		assert.Empty(t, complaints)
		assert.Equal(t, want, ignition.Files[0].Document, content)
		assert.Nil(t, ignition.Files[1].Document, "a file that is no configuration is not looked into")
	}
}

// TestADocumentIsDecodedOnce for all files with its content, whoever asks first.
func TestADocumentIsDecodedOnce(t *testing.T) {
	t.Parallel()
	docs := newDocuments()
	var all sync.Map
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() { all.Store(reflect.ValueOf(docs.read([]byte("a: 1\n"))).Pointer(), true) })
	}
	readers.Wait()
	count := 0
	all.Range(func(any, any) bool { count++; return true })
	assert.Equal(t, 1, count)
	assert.Equal(t, map[string]any{"a": int64(2)}, docs.read([]byte("a: 2\n")))

	// A fleet in which every file differs.
	for i := range maxRemembered + 10 {
		require.NotNil(t, docs.read(fmt.Appendf(nil, "a: %d\n", i)))
	}
	assert.Len(t, docs.seen, maxRemembered)
}
