package kube

import (
	"fmt"
	"net/http"
	"slices"
)

// WriteError tells that a request was stopped because it might have changed something.
type WriteError struct {
	Method, Path string
}

func (e *WriteError) Error() string {
	return fmt.Sprintf("refusing to send %s %s: this command only looks", e.Method, e.Path)
}

// guard lets nothing through that could change a cluster. It is not what keeps planning from writing (no code has a way to ask for
// it); it is there for the day somebody makes a mistake.
type guard struct{ next http.RoundTripper }

func (g guard) RoundTrip(request *http.Request) (*http.Response, error) {
	if !Harmless(request) {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, &WriteError{Method: request.Method, Path: request.URL.Path}
	}
	return g.next.RoundTrip(request)
}

// WrappedRoundTripper lets client-go find the transport below.
func (g guard) WrappedRoundTripper() http.RoundTripper { return g.next }

// Harmless tells whether a request can change nothing: it reads, or it is a patch that the server only tries.
func Harmless(request *http.Request) bool {
	switch request.Method {
	case http.MethodGet, http.MethodHead:
		return true
	case http.MethodPatch:
		// A repeated or mixed value must not slip through.
		return slices.Equal(request.URL.Query()["dryRun"], []string{"All"})
	default:
		return false
	}
}
