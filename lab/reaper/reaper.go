package reaper

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// ErrKilled is what everything gets that a killed process would still ask for.
var ErrKilled = errors.New("the process was killed")

// Reaper kills a process after one of its writes: the server has it, the process never hears of it. That state is also the one of being
// killed before the next write. Writes that a process sends side by side go one after the other here, so that each can be the last.
type Reaper struct {
	// After is the number of the write after which to kill, counted among those that Count says; 0 never kills.
	After int
	Count func(*http.Request) bool
	// Instead kills before that write is sent: what came before it, and went another way, is done, and nobody has noted it.
	Instead bool
	// Kill ends the process.
	Kill context.CancelFunc

	mu   sync.Mutex
	seen []string
	dead bool
}

// Wrap puts the reaper before a process's transport.
func (r *Reaper) Wrap(next http.RoundTripper) http.RoundTripper { return &reaping{r, next} }

// Dead says whether the process was killed.
func (r *Reaper) Dead() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dead
}

// Seen are the writes that were counted, in their order. Of a killed process the last one is that which killed it.
func (r *Reaper) Seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

type reaping struct {
	*Reaper

	transport http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (r *reaping) RoundTrip(request *http.Request) (*http.Response, error) {
	if kube.Harmless(request) {
		if r.Dead() {
			return nil, ErrKilled
		}
		return r.transport.RoundTrip(request)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		return nil, ErrKilled
	}
	if r.Instead && len(r.seen)+1 == r.After && r.Count(request) {
		r.seen, r.dead = append(r.seen, request.Method+" "+request.URL.Path), true
		r.Kill()
		return nil, ErrKilled
	}
	response, err := r.transport.RoundTrip(request)
	if !r.Count(request) {
		return response, err
	}
	if r.seen = append(r.seen, request.Method+" "+request.URL.Path); len(r.seen) != r.After {
		return response, err
	}
	r.dead = true
	r.Kill()
	if err == nil {
		_ = response.Body.Close()
	}
	return nil, ErrKilled
}
