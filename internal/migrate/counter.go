package migrate

import (
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// Counter counts the requests that changed something.
type Counter struct {
	mu     sync.Mutex
	byVerb map[string]int
}

// Add counts one; it is what a Writer tells.
func (c *Counter) Add(w kube.Write) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byVerb == nil {
		c.byVerb = map[string]int{}
	}
	c.byVerb[string(w.Verb)]++
}

// Writes returns the counts so far.
func (c *Counter) Writes() history.Writes {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := history.Writes{ByOne: maps.Clone(c.byVerb)}
	for _, n := range c.byVerb {
		out.Total += n
	}
	return out
}

func newTime(t time.Time) metav1.Time { return metav1.NewTime(t) }
