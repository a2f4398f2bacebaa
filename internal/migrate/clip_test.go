package migrate

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
)

// TestTextsAreCutBetweenCharacters: half a character comes back from the API server as another one.
func TestTextsAreCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "short", Clip("short", 5))
	for most := 10; most < 20; most++ {
		cut := Clip(strings.Repeat("ü", 20), most)
		assert.True(t, utf8.ValidString(cut), cut)
		assert.LessOrEqual(t, len(cut), most)
		assert.True(t, strings.HasSuffix(cut, "ü…"), cut)
	}
}
