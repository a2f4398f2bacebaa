package migrate

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

const (
	// FleetLabel marks the record of a fleet, with the fleet's name.
	FleetLabel = "migration.giantswarm.io/fleet"
	// fleetPrefix begins the names of a fleet's objects, fleetRecordKey is where its record is.
	fleetPrefix    = "migration-fleet-"
	fleetRecordKey = "record"
)

// FleetKey is where the record of a fleet is kept, a ConfigMap, and its lock, a Lease.
func FleetKey(namespace, name string) client.ObjectKey {
	return client.ObjectKey{Namespace: namespace, Name: fleetPrefix + name}
}

// LoadFleetRecord reads a fleet's record; an empty one when there is none.
func LoadFleetRecord(ctx context.Context, reader client.Reader, key client.ObjectKey) (*fleet.Record, error) {
	object := &corev1.ConfigMap{}
	if err := reader.Get(ctx, key, object); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading ConfigMap %s: %w", key, err)
	}
	record, err := fleet.DecodeRecord(object.Data[fleetRecordKey])
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s: %w", key, err)
	}
	return record, nil
}

// SaveFleetRecord writes a fleet's record, with what somebody else wrote into it meanwhile: a hold that people asked for is not lost.
func SaveFleetRecord(ctx context.Context, c client.Client, key client.ObjectKey, name string, record *fleet.Record) error {
	beaten := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	if err := retry.OnError(retry.DefaultRetry, beaten, func() error { return saveFleetRecord(ctx, c, key, name, record) }); err != nil {
		return fmt.Errorf("writing ConfigMap %s: %w", key, err)
	}
	return nil
}

func saveFleetRecord(ctx context.Context, c client.Client, key client.ObjectKey, name string, record *fleet.Record) error {
	object := &corev1.ConfigMap{}
	err := c.Get(ctx, key, object)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	missing := err != nil
	stored, err := fleet.DecodeRecord(object.Data[fleetRecordKey])
	if err != nil {
		return err
	}
	record.Merge(stored)
	text, err := record.Encode()
	if err != nil {
		return err
	}
	object.Data = map[string]string{fleetRecordKey: text}
	if missing {
		object.ObjectMeta = metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: map[string]string{FleetLabel: name}}
		return c.Create(ctx, object, client.FieldOwner(kube.FieldOwner))
	}
	return c.Update(ctx, object, client.FieldOwner(kube.FieldOwner))
}

// FleetRecordOf reads a record out of an object that was watched.
func FleetRecordOf(data map[string]any) (*fleet.Record, error) {
	text, _ := data[fleetRecordKey].(string)
	return fleet.DecodeRecord(text)
}
