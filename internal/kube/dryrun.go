package kube

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// DryRun asks an API server what an object would look like after an apply. It has no other ability, and there is no way to make
// one that applies for real.
type DryRun struct {
	client client.Client
}

// NewDryRun wraps a client, for example one of a test's API server.
func NewDryRun(full client.Client) *DryRun {
	return &DryRun{client: client.NewDryRunClient(full)}
}

// DryRunApply sends a server-side apply with dryRun=All, as field owner migrate and without force, and returns what the server
// would store. The object given is left as it is.
func (d *DryRun) DryRunApply(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	wanted := object.DeepCopy()
	// The option is also set by the wrapper; what matters this much may be said twice.
	err := d.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(wanted), client.FieldOwner(FieldOwner), client.DryRunAll)
	if err != nil {
		return nil, fmt.Errorf("asking for a dry run of %s %s: %w", wanted.GetKind(), client.ObjectKeyFromObject(wanted), err)
	}
	return wanted, nil
}
