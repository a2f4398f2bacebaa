package cli

import (
	"strings"

	"github.com/agnivade/levenshtein"
)

// longestWord is the length beyond which nobody made a typing mistake; comparing megabytes would take hours.
const longestWord = 128

// nearest returns the candidate a typing mistake most likely meant; empty when none is near.
func nearest(word string, candidates []string) string {
	if len(word) > longestWord {
		return ""
	}
	// Two swapped letters count as two edits; of a very short word that would leave nothing.
	best, distance := "", max(min(2, len(word)-2), len(word)/3)+1
	for _, candidate := range candidates {
		if len(candidate) > longestWord {
			continue
		}
		if d := levenshtein.ComputeDistance(strings.ToLower(word), strings.ToLower(candidate)); d < distance {
			best, distance = candidate, d
		}
	}
	return best
}

// didYouMean is nearest as the end of a sentence.
func didYouMean(word string, candidates []string) string {
	if best := nearest(word, candidates); best != "" {
		return "; did you mean " + best + "?"
	}
	return ""
}
