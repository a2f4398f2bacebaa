package cli

import (
	"strings"
)

// nearest returns the candidate a typing mistake most likely meant; empty when none is near.
func nearest(word string, candidates []string) string {
	// Two swapped letters count as two edits; of a very short word that would leave nothing.
	best, distance := "", max(min(2, len(word)-2), len(word)/3)+1
	for _, candidate := range candidates {
		if d := editDistance(strings.ToLower(word), strings.ToLower(candidate)); d < distance {
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

// editDistance counts insertions, deletions and replacements. Long words are never near anything.
func editDistance(a, b string) int {
	const longest = 128
	if len(a) > longest || len(b) > longest {
		return longest
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
