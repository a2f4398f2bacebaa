package pack

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
)

// JSON writes a document as compressed JSON.
func JSON(document any) ([]byte, error) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if err := failure.Join(json.NewEncoder(w).Encode(document), w.Close()); err != nil {
		return nil, fmt.Errorf("packing: %w", err)
	}
	return packed.Bytes(), nil
}

// Open returns the text that JSON compressed. More than limit bytes are refused: a few packed ones may stand for all of the memory.
func Open(packed []byte, limit int64) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpacking: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(r, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("unpacking: %w", err)
	case int64(len(text)) > limit:
		return nil, fmt.Errorf("unpacking: it is larger than %d bytes", limit)
	}
	return text, nil
}
