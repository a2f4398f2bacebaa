package manager

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/kvmmachine"
)

// cacheOptions keep memory small: of Services, EndpointSlices and Ingresses only those of clusters, of pods only virtual machines, and
// nothing with managed fields. Secrets and ConfigMaps are never cached, see clientOptions.
func cacheOptions(o *Options) (ctrlcache.Options, error) {
	ofClusters, err := labels.NewRequirement(clusterv1.ClusterNameLabel, selection.Exists, nil)
	if err != nil {
		return ctrlcache.Options{}, fmt.Errorf("making a selector: %w", err)
	}
	selector := labels.NewSelector().Add(*ofClusters)
	byObject := map[client.Object]ctrlcache.ByObject{
		&corev1.Service{}:            {Label: selector},
		&discoveryv1.EndpointSlice{}: {Label: selector},
		&networkingv1.Ingress{}:      {Label: selector},
	}
	machines, err := kvmmachine.CacheByObject()
	if err != nil {
		return ctrlcache.Options{}, fmt.Errorf("choosing what to cache: %w", err)
	}
	maps.Copy(byObject, machines)
	options := ctrlcache.Options{
		SyncPeriod:       &o.SyncPeriod,
		DefaultTransform: ctrlcache.TransformStripManagedFields(),
		ByObject:         byObject,
	}
	if o.Namespace != "" {
		options.DefaultNamespaces = map[string]ctrlcache.Config{o.Namespace: {}}
	}
	return options, nil
}

// clientOptions read Secrets from the API server each time: they are read when a workload cluster is connected to, and a cache would hold
// the keys of all clusters. Bootstrap data are only mounted.
func clientOptions() client.Options {
	return client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}}}
}
