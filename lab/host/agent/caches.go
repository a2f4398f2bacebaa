package agent

import (
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// caches are what the host watches.
type caches struct {
	pods     cache.SharedIndexInformer
	services corev1listers.ServiceLister
}
