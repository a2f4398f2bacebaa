package kube

import (
	"net/http"

	"k8s.io/client-go/rest"
)

// Gated is a copy of a configuration for code of others that writes by itself, as Cluster API's drain does: like a [Writer], its connection asks the
// gate before every request that may change something, and tells of those that did.
func Gated(config *rest.Config, opts WriterOptions) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &gated{next: next, opts: opts} })
	return config
}

type gated struct {
	next http.RoundTripper
	opts WriterOptions
}

func (g *gated) RoundTrip(request *http.Request) (*http.Response, error) {
	if Harmless(request) {
		return g.next.RoundTrip(request)
	}
	if g.opts.Gate != nil {
		if err := g.opts.Gate(request.Context()); err != nil {
			if request.Body != nil {
				_ = request.Body.Close()
			}
			return nil, err
		}
	}
	response, err := g.next.RoundTrip(request)
	if err == nil && response.StatusCode < http.StatusBadRequest && g.opts.Told != nil {
		g.opts.Told(Write{verbOf(request.Method), request.URL.Path})
	}
	return response, err
}

// WrappedRoundTripper lets client-go find the transport below.
func (g *gated) WrappedRoundTripper() http.RoundTripper { return g.next }

func verbOf(method string) Verb {
	switch method {
	case http.MethodPost:
		return Created
	case http.MethodDelete:
		return Deleted
	default:
		return Patched
	}
}
