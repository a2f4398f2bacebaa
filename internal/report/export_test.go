package report

// TextWidth lets tests measure as the package does.
func TextWidth(s string) int { return textWidth(s) }
