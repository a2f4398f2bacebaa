package drain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestOnlyBudgetsAreBlamedOnBudgets: an API server that is late refuses nobody's pods for good, and customers would look for a budget that is not there.
func TestOnlyBudgetsAreBlamedOnBudgets(t *testing.T) {
	t.Parallel()
	pod := func(namespace, name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	now := time.Date(2026, 11, 28, 22, 0, 0, 0, time.UTC)
	r := newRefusals()
	r.look(now, map[string][]*corev1.Pod{
		"Cannot evict pod as it would violate the pod's disruption budget.":                                {pod("shop", "web-1")},
		"This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.": {pod("twice", "web-1")},
		"eviction timeout of 10s reached, eviction will be retried":                                        {pod("late", "web-1"), pod("shop", "web-2")},
		"admission webhook \"w\" denied the request: not now":                                              {pod("hooked", "web-1")},
	})
	r.look(now.Add(30*time.Second), nil)
	assert.Equal(t, map[string]time.Duration{"shop": 30 * time.Second, "twice": 30 * time.Second}, r.namespaces())
	assert.Contains(t, r.sentence("worker-1"), "late/web-1 for 30s (eviction timeout of 10s reached")
}
