package webhooks

import (
	"context"
	"fmt"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

// EvictionPath is where the API server sends evictions.
const EvictionPath = "/evictions"

// SetupWithManager registers all webhooks and the indexes they need. The namespace is the only one that the manager's cache holds; empty for all.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, namespace string, clock clock.PassiveClock) error {
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	for _, err := range []error{
		ctrl.NewWebhookManagedBy(mgr, &infrav1.KVMCluster{}).WithValidator(&Cluster{}).Complete(),
		ctrl.NewWebhookManagedBy(mgr, &infrav1.KVMClusterTemplate{}).WithValidator(&ClusterTemplate{}).Complete(),
		ctrl.NewWebhookManagedBy(mgr, &infrav1.KVMMachine{}).WithValidator(&Machine{Reader: mgr.GetClient()}).Complete(),
		ctrl.NewWebhookManagedBy(mgr, &infrav1.KVMMachineTemplate{}).WithValidator(&MachineTemplate{}).Complete(),
	} {
		if err != nil {
			return fmt.Errorf("registering webhooks: %w", err)
		}
	}
	mgr.GetWebhookServer().Register(EvictionPath, &webhook.Admission{Handler: &Eviction{Client: mgr.GetClient(), Namespace: namespace, Clock: clock}})
	return nil
}

// addIndexes lets the KVMMachine's webhook find other machines without reading all of them.
func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for index, value := range map[string]func(*infrav1.KVMMachine) string{initiatorIndex: (*infrav1.KVMMachine).InitiatorName, podUIDIndex: podUID} {
		err := indexer.IndexField(ctx, &infrav1.KVMMachine{}, index, func(o client.Object) []string {
			m, ok := o.(*infrav1.KVMMachine)
			if !ok || value(m) == "" {
				return nil
			}
			return []string{value(m)}
		})
		if err != nil {
			return fmt.Errorf("indexing KVMMachines for webhooks: %w", err)
		}
	}
	return nil
}

func podUID(m *infrav1.KVMMachine) string {
	if m.Spec.Adopted == nil {
		return ""
	}
	return m.Spec.Adopted.PodRef.UID
}
