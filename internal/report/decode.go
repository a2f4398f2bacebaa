package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/yamlerror"
)

// documentVersion is the version of every document's apiVersion, behind the group.
const documentVersion = "v1alpha1"

// Decode reads a saved document, JSON or YAML, and returns a *plan.Plan, *check.Report, *check.Inventory, *proof.Proof,
// *history.RunReport, *fleet.Plan or *fleet.Report that renders exactly as the one that was saved. It is strict: unknown and duplicate keys, a second document and another version are
// errors, because a document that is understood in part must not be shown as a whole.
func Decode(data []byte) (any, error) {
	if !json.Valid(data) {
		if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && trimmed[0] == '{' {
			return nil, errors.New("reading document: not one JSON object")
		}
		if severalDocuments(data) {
			return nil, errors.New("reading document: more than one document")
		}
		converted, err := yaml.YAMLToJSONStrict(data)
		if err != nil {
			return nil, fmt.Errorf("reading document: %w", yamlerror.Plain(err, data))
		}
		data = converted
	}
	if key, err := duplicateKey(json.NewDecoder(bytes.NewReader(data))); err != nil {
		return nil, fmt.Errorf("reading document: %w", err)
	} else if key != "" {
		return nil, fmt.Errorf("reading document: key %q appears twice in one object", key)
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       Kind   `json:"kind"`
	}
	if json.Unmarshal(data, &head) != nil {
		// The decoder's own words name Go types, which say nothing to the person at the keyboard.
		return nil, errors.New("reading document: it has no apiVersion and kind, so it is no document of this program")
	}
	if _, version, _ := strings.Cut(head.APIVersion, "/"); version != documentVersion {
		return nil, fmt.Errorf("reading document: apiVersion is %q, this program reads version %s", head.APIVersion, documentVersion)
	}
	return decodeKind(head.Kind, data)
}

// decodeKind reads a document whose kind is known.
func decodeKind(kind Kind, data []byte) (any, error) {
	switch kind {
	case KindPlan:
		return decodeAs[plan.Plan](data)
	case KindCheckReport:
		return decodeAs[check.Report](data)
	case KindInventory:
		return decodeAs[check.Inventory](data)
	case KindProof:
		return decodeAs[proof.Proof](data)
	case KindRunReport:
		return decodeAs[history.RunReport](data)
	case KindFleetPlan:
		return decodeAs[fleet.Plan](data)
	case KindFleetReport:
		return decodeAs[fleet.Report](data)
	default:
		return nil, fmt.Errorf("reading document: %w", &UnsupportedError{
			What:    fmt.Sprintf("kind %q", kind),
			Allowed: []string{string(KindPlan), string(KindCheckReport), string(KindInventory), string(KindProof), string(KindRunReport), string(KindFleetPlan), string(KindFleetReport)},
		})
	}
}

func decodeAs[T any](data []byte) (*T, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	dec.UseNumber() // A number must come out as it went in, however large.
	doc := new(T)
	if err := dec.Decode(doc); err != nil {
		return nil, fmt.Errorf("reading document: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("reading document: more than one document")
	}
	return doc, nil
}

// duplicateKey finds a key that an object has twice; encoding/json would silently take the last one.
func duplicateKey(dec *json.Decoder) (string, error) {
	token, err := dec.Token()
	if err != nil {
		return "", err
	}
	delim, collection := token.(json.Delim)
	if !collection {
		return "", nil
	}
	seen := map[string]bool{}
	for dec.More() {
		if delim == '{' {
			key, err := dec.Token()
			if err != nil {
				return "", err
			}
			name := fmt.Sprint(key)
			if seen[name] {
				return name, nil
			}
			seen[name] = true
		}
		if key, err := duplicateKey(dec); key != "" || err != nil {
			return key, err
		}
	}
	_, err = dec.Token()
	return "", err
}

// severalDocuments tells whether a YAML stream has a second document, which the YAML library would ignore.
func severalDocuments(data []byte) bool {
	content := false
	return slices.ContainsFunc(strings.Split(string(data), "\n"), func(line string) bool {
		if line == "---" || strings.HasPrefix(line, "--- ") {
			return content
		}
		content = content || strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#")
		return false
	})
}
