package yamlerror_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/yamlerror"
)

// TestALineIsTheFilesOwn asks both libraries: the scanner's complaints and the parser's, and those of an end that is missing.
func TestALineIsTheFilesOwn(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		line int
		says string
	}{
		"a: 1\nb: {c: 1 ]\n":                {2, "did not find expected ',' or '}'"},
		"a: 1\nb: [}\n":                     {2, "did not find expected node content"},
		"a: 1\nb: !x!y z\n":                 {2, "found undefined tag handle"},
		"a: 1\nb: c: d\n":                   {2, "mapping values are not allowed in this context"},
		"a: 1\nb: |x\n  c\n":                {2, "did not find expected comment or line break"},
		"a: 1\nb: \"\\q\"\n":                {2, "found unknown escape character"},
		"a: 1\nb: [\n":                      {2, "did not find expected node content"},
		"a: 1\nb: [\r\n\r\n":                {2, "did not find expected node content"},
		"a: [":                              {1, "did not find expected node content"},
		"%YAML 1.1\n%YAML 1.1\n---\na: 1\n": {2, "found duplicate %YAML directive"},
	} {
		_, two := yaml.YAMLToJSON([]byte(text))
		var node yamlv3.Node
		for name, err := range map[string]error{"v2": two, "v3": yamlv3.Unmarshal([]byte(text), &node)} {
			require.Error(t, err, "%s: %q", name, text)
			line, complaint := yamlerror.Place(err, []byte(text))
			assert.Equal(t, want.line, line, "%s: %q: %s", name, text, err)
			assert.Equal(t, want.says, complaint, "%s: %q", name, text)
		}
	}
}

func TestAnErrorWithoutALineIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"yaml: unknown anchor 'b' referenced":              "unknown anchor 'b' referenced",
		"line of thought: none":                            "line of thought: none",
		"yaml: unmarshal errors:\n  line 3: key \"a\" set": "unmarshal errors:\n  line 3: key \"a\" set",
		"disk full": "disk full",
	} {
		line, complaint := yamlerror.Place(errors.New(text), nil)
		assert.Zero(t, line, text)
		assert.Equal(t, want, complaint)
	}
}
