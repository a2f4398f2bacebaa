package legacy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v2"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/yamlerror"
)

// yamlDocument is one document of a YAML stream and the line it begins on.
type yamlDocument struct {
	text []byte
	line int
}

// splitYAML cuts a stream at its document markers. Markers cannot occur inside a block scalar of an object, because those are
// indented; so no parsing is needed to find them.
func splitYAML(data []byte) []yamlDocument {
	var docs []yamlDocument
	line, start, startLine := 1, 0, 1
	cut := func(end int) {
		if text := data[start:end]; len(bytes.TrimSpace(text)) > 0 {
			docs = append(docs, yamlDocument{text: text, line: startLine})
		}
	}
	for at := 0; at < len(data); line++ {
		end := bytes.IndexByte(data[at:], '\n')
		if end < 0 {
			end = len(data)
		} else {
			end += at + 1
		}
		if text := data[at:end]; bytes.HasPrefix(text, []byte("---")) && (len(text) == 3 || strings.IndexByte(" \t\r\n", text[3]) >= 0) {
			cut(at)
			start, startLine = at, line
			if len(bytes.TrimSpace(text)) == 3 {
				start, startLine = end, line+1 // nothing but the marker
			}
		}
		at = end
	}
	cut(len(data))
	return docs
}

// lineError is a mistake on a line of a file.
type lineError struct {
	line int
	what string
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.what) }

// errTooMuch is what a document gets that aliases make larger than the limit.
var errTooMuch = errors.New("expands to more than the limit")

// decodeYAML decodes one document into the values JSON has. The rules are those of sigs.k8s.io/yaml (YAML 1.1 scalars, last of
// two equal keys wins), which is what kubectl and the API server go by; only the detour over JSON text is left out.
// Keys that occur twice are reported.
func decodeYAML(doc yamlDocument, limit int64, twice func(line int, what string)) (value any, err error) {
	defer func() {
		// The decoder is fed with files of unknown origin; a panic in it must not end the reading of the fleet.
		if r := recover(); r != nil {
			value, err = nil, &lineError{line: doc.line, what: "the YAML decoder gave up"}
		}
	}()
	var decoded any
	err = yaml.UnmarshalStrict(doc.text, &decoded)
	if doubled, ok := errors.AsType[*yaml.TypeError](err); ok {
		// Strictness only concerns keys here. Merge keys are meant to be overridden.
		if !bytes.Contains(doc.text, []byte("<<:")) {
			for _, text := range doubled.Errors {
				at, _ := errors.AsType[*lineError](yamlError(doc, errors.New(text)))
				twice(at.line, at.what)
			}
		}
		decoded = nil
		err = yaml.Unmarshal(doc.text, &decoded)
	}
	if err != nil {
		return nil, yamlError(doc, err)
	}
	budget := limit
	return plainValue(decoded, 0, &budget)
}

// yamlError turns the decoder's line, which counts from the document, into the file's.
func yamlError(doc yamlDocument, err error) error {
	line, what := yamlerror.Place(err, doc.text)
	return &lineError{line: doc.line + max(line, 1) - 1, what: what}
}

// plainValue turns the decoder's values into JSON's. The budget makes sure that aliases cannot fill the memory: the decoder
// shares what they repeat, writing it out would not.
func plainValue(value any, depth int, budget *int64) (any, error) {
	if depth > maxDepth {
		return nil, &depthError{}
	}
	const perValue = 8
	if *budget -= perValue; *budget < 0 {
		return nil, errTooMuch
	}
	switch v := value.(type) {
	case map[any]any:
		return plainObject(v, depth, budget)
	case []any:
		list := make([]any, len(v))
		for i, item := range v {
			var err error
			if list[i], err = plainValue(item, depth+1, budget); err != nil {
				return nil, err
			}
		}
		return list, nil
	case string:
		if *budget -= int64(len(v)); *budget < 0 {
			return nil, errTooMuch
		}
		return v, nil
	case int:
		return int64(v), nil
	case int64, bool, nil:
		return v, nil
	case uint64:
		return float64(v), nil // only what does not fit into int64 arrives here
	case float64:
		return jsonNumber(v)
	default:
		return nil, fmt.Errorf("decoding a value of type %T: no such type in JSON", value)
	}
}

func plainObject(mapping map[any]any, depth int, budget *int64) (any, error) {
	object := make(map[string]any, len(mapping))
	for key, item := range mapping {
		name, err := keyName(key)
		if err != nil {
			return nil, err
		}
		if *budget -= int64(len(name)); *budget < 0 {
			return nil, errTooMuch
		}
		if object[name], err = plainValue(item, depth+1, budget); err != nil {
			return nil, err
		}
	}
	return object, nil
}

// jsonNumber gives a float the value it has after a trip through JSON text: 16.0 is written as 16 and read as an integer.
func jsonNumber(f float64) (any, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, errors.New("decoding a number: JSON has neither infinity nor NaN")
	}
	text, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("decoding a number: %w", err)
	}
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return n, nil
	}
	return f, nil
}

// keyName spells keys that are no strings the way sigs.k8s.io/yaml does.
func keyName(key any) (string, error) {
	switch k := key.(type) {
	case string:
		return k, nil
	case int:
		return strconv.Itoa(k), nil
	case int64:
		return strconv.FormatInt(k, 10), nil
	case float64:
		text := strconv.FormatFloat(k, 'g', -1, 32)
		switch text {
		case "+Inf":
			text = ".inf"
		case "-Inf":
			text = "-.inf"
		case "NaN":
			text = ".nan"
		}
		return text, nil
	case bool:
		return strconv.FormatBool(k), nil
	default:
		return "", fmt.Errorf("decoding a mapping: a key of type %T has no name", key)
	}
}

// encodeJSON writes a value as compact JSON with sorted keys.
func encodeJSON(value any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return nil, fmt.Errorf("encoding an object: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
