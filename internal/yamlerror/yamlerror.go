package yamlerror

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Place takes apart what a library says of text that it cannot read, as in "yaml: line 3: did not find expected key": the line, counted from one, and the complaint without it. The
// line is zero where the library names none.
func Place(err error, text []byte) (line int, complaint string) {
	complaint = err.Error()
	for _, lead := range []string{"error converting YAML to JSON: ", "yaml: "} {
		complaint = strings.TrimPrefix(complaint, lead)
	}
	place, rest, found := strings.Cut(complaint, ": ")
	number, named := strings.CutPrefix(place, "line ")
	if line, err = strconv.Atoi(number); !found || !named || err != nil {
		return 0, complaint
	}
	if ofParser(rest) {
		line++
	}
	return min(line, lines(text)), rest
}

// Plain is what a library says without its name, and with the line of the file where it names one.
func Plain(err error, text []byte) error {
	line, complaint := Place(err, text)
	if line == 0 {
		return errors.New(complaint)
	}
	return fmt.Errorf("line %d: %s", line, complaint)
}

// ofParser tells the complaints of the libraries' parser: it counts lines from zero, their scanner from one (parserc.go has the complaints, and parser.fail in decode.go the line).
func ofParser(complaint string) bool {
	switch complaint {
	case "did not find expected <stream-start>", "did not find expected <document start>", "did not find expected node content", "did not find expected key",
		"did not find expected '-' indicator", "did not find expected ',' or ']'", "did not find expected ',' or '}'",
		"found undefined tag handle", "found duplicate %YAML directive", "found duplicate %TAG directive", "found incompatible YAML document":
		return true
	}
	return false
}

// lines is the last line with something on it: an end that is missing is looked for behind that.
func lines(text []byte) int {
	return 1 + bytes.Count(bytes.TrimRight(text, "\r\n"), []byte("\n"))
}
