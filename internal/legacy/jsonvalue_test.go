package legacy

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	k8sjson "k8s.io/apimachinery/pkg/util/json"
)

func TestJSONThatIsNotJSONIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", " ", "{", "[", "}", "]", `{"a"}`, `{"a":}`, `{"a":1,}`, `[1,]`, `[,1]`, `{,}`, `{a:1}`, "01", "-", "1.", ".5", "+1", "1e", "NaN", "nul", "tru",
		`"`, `"\`, `"\x"`, `"\u12"`, `"\u12g4"`, "\"a\nb\"", "1 2", `{} {}`, `'a'`, "1e999", "\x00",
	} {
		_, err := decodeJSON(text)
		require.Error(t, err, "%q", text)
		d := jsonText{s: text}
		if err := d.skip(0); err == nil {
			d.space()
			assert.Less(t, d.i, len(text), "%q", text)
		}
	}
}

func TestNestingIsLimited(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("megabytes that one goroutine reads")
	}
	for _, text := range []string{strings.Repeat("[", 1e6), strings.Repeat(`{"a":`, 1e6)} {
		_, err := decodeJSON(text)
		var deep *depthError
		require.ErrorAs(t, err, &deep)
		err = scanJSON(strings.NewReader(text+"1"+strings.Repeat("]", 1e6)), 64*mebibyte, func(jsonItem) {})
		assert.Error(t, err)
	}
}

func FuzzDecodeJSON(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-2.5e3,true,null,"\u00e9\ud83d\ude00\\\"\n"]}`, `"\ud800x"`, "\"\xff\"", `18446744073709551615`, `-0`, `{"a":1,"a":2}`, ` [ ] `} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := decodeJSON(text)
		if _, deep := errors.AsType[*depthError](err); deep {
			return
		}
		var want any
		wantErr := k8sjson.Unmarshal([]byte(text), &want)
		if strings.Contains(text, "e") || strings.Contains(text, "E") || len(text) > 300 {
			if wantErr == nil && err != nil {
				return // out of range numbers differ in wording only
			}
		}
		require.Equal(t, wantErr == nil, err == nil, "ours: %v, theirs: %v", err, wantErr)
		if err == nil {
			require.Empty(t, cmp.Diff(want, got))
		}
	})
}

func TestObjectsAreFoundHoweverTheyAreListed(t *testing.T) {
	t.Parallel()
	pod := func(name string) string { return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `"}}` }
	bare := func(name string) string { return `{"metadata":{"name":"` + name + `","labels":{"a":"b"}}}` }
	cases := map[string]struct {
		text string
		want []string
	}{
		"one object":                               {pod("a"), []string{"Pod/a"}},
		"objects one after another":                {pod("a") + "\n" + pod("b") + pod("c"), []string{"Pod/a", "Pod/b", "Pod/c"}},
		"a JSON list":                              {"[" + pod("a") + "," + pod("b") + "]", []string{"Pod/a", "Pod/b"}},
		"a List with its kind behind the items":    {`{"apiVersion":"v1","items":[` + pod("a") + "," + pod("b") + `],"kind":"List","metadata":{}}`, []string{"Pod/a", "Pod/b"}},
		"a typed list of items without kind":       {`{"apiVersion":"v1","items":[` + bare("a") + `],"kind":"PodList"}`, []string{"Pod/a"}},
		"an object that merely has items":          {`{"apiVersion":"x/v1","kind":"Menu","metadata":{"name":"a"},"items":[1,{"kind":"Dish"}]}`, []string{"Menu/a"}},
		"an empty list":                            {`{"apiVersion":"v1","kind":"List","items":[]}`, nil},
		"items that are no objects":                {`[1,"a",null,{},{"b":1},` + pod("a") + "]", []string{"Pod/a"}},
		"an Ignition document":                     {`{"ignition":{"version":"2.2.0"},"storage":{"files":[]}}`, nil},
		"metadata before kind":                     {`{"metadata":{"name":"a"},"kind":"Pod","apiVersion":"v1"}`, []string{"Pod/a"}},
		"strings with brackets and escaped quotes": {`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":{"x":"}]\"\\"}}}`, []string{"Pod/a"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, reader := range []func(string) []jsonItem{
				func(text string) []jsonItem { return scanAll(t, text, false) },
				func(text string) []jsonItem { return scanAll(t, text, true) },
			} {
				var got []string
				for _, item := range reader(c.text) {
					if errors.Is(item.err, errNoObject) {
						continue
					}
					require.NoError(t, item.err)
					got = append(got, item.header.ref.String())
					assert.True(t, json.Valid([]byte(c.text[item.offset:item.offset+item.length])))
				}
				assert.Equal(t, c.want, got)
			}
		})
	}
}

// scanAll scans a text in one go or byte by byte.
func scanAll(t *testing.T, text string, slowly bool) []jsonItem {
	t.Helper()
	var items []jsonItem
	r := iotest.DataErrReader(strings.NewReader(text))
	if slowly {
		r = iotest.OneByteReader(strings.NewReader(text))
	}
	require.NoError(t, scanJSON(r, mebibyte, func(item jsonItem) { items = append(items, item) }))
	return items
}

func TestAnOversizedObjectIsSkippedAndTheNextIsFound(t *testing.T) {
	t.Parallel()
	large := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"large"},"data":{"a":"` + strings.Repeat(`x\"`, 200000) + `"}}`
	small := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"small"}}`
	for _, text := range []string{"[" + large + "," + small + "]", large + small, `{"kind":"List","apiVersion":"v1","items":[` + large + "," + small + "]}"} {
		var found []string
		var tooLarge int
		require.NoError(t, scanJSON(bytes.NewReader([]byte(text)), 100<<10, func(item jsonItem) {
			if errors.Is(item.err, errTooLarge) {
				tooLarge++
				return
			}
			require.NoError(t, item.err)
			found = append(found, item.header.ref.Name)
		}))
		assert.Equal(t, 1, tooLarge)
		assert.Equal(t, []string{"small"}, found)
	}
}

func TestReadingErrorsAreReported(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken disk")
	err := scanJSON(iotest.ErrReader(broken), mebibyte, func(jsonItem) {})
	require.ErrorIs(t, err, broken)
	err = scanJSON(strings.NewReader(`[{"apiVersion":"v1"`), mebibyte, func(jsonItem) {})
	assert.ErrorContains(t, err, "unexpected end")
}
