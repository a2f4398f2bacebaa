package etcdtest_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// readerOnly is a client.Reader and nothing else.
type readerOnly struct{ client.Reader }

// methods refuses every request that is not a GET, and remembers what was asked for.
type methods struct {
	mu  sync.Mutex
	all map[string]bool
}

func newMethods() *methods { return &methods{all: map[string]bool{}} }

func (m *methods) watch(config *rest.Config) *rest.Config {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			m.mu.Lock()
			m.all[r.Method] = true
			m.mu.Unlock()
			if r.Method != http.MethodGet {
				return nil, fmt.Errorf("%s %s is not a GET", r.Method, r.URL.Path)
			}
			return next.RoundTrip(r)
		})
	})
	return config
}

func (m *methods) seen() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.all))
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
