package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"
)

const (
	// maxRaw is far more than the metrics of a kubelet; it keeps a wrong path from filling the memory.
	maxRaw = 64 << 20
	// maxComplaint is how much of a refusal is repeated.
	maxComplaint = 300
)

// Get reads one path of the API server, for example a kubelet's metrics below /api/v1/nodes. The path is a path: what looks like a
// query in it is escaped.
func (r *ReadOnly) Get(ctx context.Context, path string) (content []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("reading %s from %s: %w", path, r.Server, err)
		}
	}()
	httpClient, err := rest.HTTPClientFor(r.config)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(r.config)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(path).String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := httpClient.Do(request)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // It names method and URL, which are said already.
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		complaint, err := io.ReadAll(io.LimitReader(response.Body, maxComplaint))
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("the server answers %s: %s", response.Status, strings.Join(strings.Fields(string(complaint)), " "))
	}
	content, err = io.ReadAll(io.LimitReader(response.Body, maxRaw+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxRaw {
		return nil, fmt.Errorf("the answer is longer than %d bytes", maxRaw)
	}
	return content, nil
}
