package roll

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// endpointsOfMasters is the Endpoints object that Service and Ingress of the legacy API lead to.
const endpointsOfMasters = "master"

// Serve lets the new API server take part: its address joins that of the legacy master behind the old name.
func (c *ControlPlane) Serve(ctx context.Context) error { return c.mark(ctx, template{}) }

// VerifyServing waits until both addresses are listed.
func (c *ControlPlane) VerifyServing(ctx context.Context) error { return c.awaitListed(ctx, true) }

// Unserve takes the new address out again.
func (c *ControlPlane) Unserve(ctx context.Context) error {
	machines, err := c.machines(ctx)
	if err != nil || len(machines) == 0 {
		return err
	}
	return c.mark(ctx, template{excluded: true})
}

// VerifyUnserved waits until the new address is not listed any more.
func (c *ControlPlane) VerifyUnserved(ctx context.Context) error {
	machines, err := c.machines(ctx)
	if err != nil || len(machines) == 0 {
		return err
	}
	return c.awaitListed(ctx, false)
}

// awaitListed waits until the new address is among those that get traffic, or not; the legacy one always has to be.
func (c *ControlPlane) awaitListed(ctx context.Context, wanted bool) error {
	machine, err := c.infrastructure(ctx)
	if err != nil {
		return err
	}
	master, err := c.master()
	if err != nil {
		return err
	}
	fresh, old := address(machine), master.Pod.Object.Annotations["endpoint.kvm.giantswarm.io/ip"]
	scope := kube.Scope{GroupVersionKind: coreKind("Endpoints"), Namespace: c.Picture.ID}
	return c.Await(ctx, c.Management, scope, func(byName map[string]*unstructured.Unstructured) string {
		endpoints := byName[endpointsOfMasters]
		if endpoints == nil {
			return fmt.Sprintf("Endpoints/%s/%s to exist", c.Picture.ID, endpointsOfMasters)
		}
		listed := listedIn(endpoints)
		switch {
		case !listed[old]:
			return fmt.Sprintf("%s to list the legacy master's address %s", kube.TargetOf(endpoints), old)
		case wanted && !listed[fresh]:
			return fmt.Sprintf("%s to list the new address %s", kube.TargetOf(endpoints), fresh)
		case !wanted && listed[fresh]:
			return fmt.Sprintf("%s to leave out the new address %s", kube.TargetOf(endpoints), fresh)
		}
		return ""
	})
}

// listedIn are the addresses that get traffic.
func listedIn(endpoints *unstructured.Unstructured) map[string]bool {
	listed := map[string]bool{}
	subsets, _, err := unstructured.NestedSlice(endpoints.Object, "subsets")
	if err != nil {
		return listed
	}
	for _, s := range subsets {
		subset, ok := s.(map[string]any)
		if !ok {
			continue
		}
		addresses, _, err := unstructured.NestedSlice(subset, "addresses")
		if err != nil {
			continue
		}
		for _, a := range addresses {
			if one, ok := a.(map[string]any); ok {
				ip, _ := one["ip"].(string)
				listed[ip] = true
			}
		}
	}
	return listed
}
