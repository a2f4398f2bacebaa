package pods

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestReferencesAreExpandedOnce(t *testing.T) {
	t.Parallel()
	v := &variables{values: map[string]string{}}
	v.set("A", "one")
	v.set("B", "$(A)")
	for text, want := range map[string]string{
		"$(A)":       "one",
		"x$(A)y$(A)": "xoneyone",
		"$$(A)":      "$(A)",
		"$$$(A)":     "$one",
		"$(NONE)":    "$(NONE)",
		"$(B)":       "$(A)",
		"$A $":       "$A $",
		"$(A":        "$(A",
	} {
		assert.Equal(t, want, v.expand(text), text)
	}
}
