package roll

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// endpointsOfMasters is the Endpoints object that Service and Ingress of the legacy API lead to.
const endpointsOfMasters = "master"

// Serve lets the new API server take part: its address joins that of the legacy master behind the old name.
func (c *Roller) Serve(ctx context.Context) error { return c.mark(ctx, template{}) }

// VerifyServing waits until both addresses are listed.
func (c *Roller) VerifyServing(ctx context.Context) error {
	return c.awaitAddresses(ctx, addresses{old: listed, fresh: listed})
}

// Unserve takes the new address out again.
func (c *Roller) Unserve(ctx context.Context) error {
	machines, err := c.machines(ctx)
	if err != nil || len(machines) == 0 {
		return err
	}
	return c.mark(ctx, template{excluded: true})
}

// VerifyUnserved waits until the new address is not listed any more.
func (c *Roller) VerifyUnserved(ctx context.Context) error {
	machines, err := c.machines(ctx)
	if err != nil || len(machines) == 0 {
		return err
	}
	return c.awaitAddresses(ctx, addresses{old: listed, fresh: absent})
}

// presence is what is wanted of an address behind the old name.
type presence int

const (
	whatever presence = iota
	listed
	absent
)

// addresses say what is wanted of the legacy master's address and the new machine's.
type addresses struct{ old, fresh presence }

// awaitAddresses waits until the old name leads where it is wanted to.
func (c *Roller) awaitAddresses(ctx context.Context, wanted addresses) error {
	master, err := c.master()
	if err != nil {
		return err
	}
	fresh := ""
	if wanted.fresh != whatever {
		machine, err := c.infrastructure(ctx)
		if err != nil {
			return err
		}
		fresh = address(machine)
	}
	type expectation struct {
		what, ip string
		presence
	}
	expected := []expectation{
		{"the legacy master's address", master.Pod.Object.Annotations["endpoint.kvm.giantswarm.io/ip"], wanted.old}, {"the new address", fresh, wanted.fresh},
	}
	scope := kube.Scope{GroupVersionKind: coreKind("Endpoints"), Namespace: c.Picture.ID}
	return c.Await(ctx, c.Management, scope, func(byName map[string]*unstructured.Unstructured) string {
		endpoints := byName[endpointsOfMasters]
		if endpoints == nil {
			return fmt.Sprintf("Endpoints/%s/%s to exist", c.Picture.ID, endpointsOfMasters)
		}
		found := listedIn(endpoints, int64(c.securePort()))
		for _, e := range expected {
			switch {
			case e.presence == listed && !found[e.ip]:
				return fmt.Sprintf("%s to list %s %s", kube.TargetOf(endpoints), e.what, e.ip)
			case e.presence == absent && found[e.ip]:
				return fmt.Sprintf("%s to leave out %s %s", kube.TargetOf(endpoints), e.what, e.ip)
			}
		}
		return ""
	})
}

// listedIn are the addresses that get traffic on a port.
func listedIn(endpoints *unstructured.Unstructured, port int64) map[string]bool {
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
		ports, _, err := unstructured.NestedSlice(subset, "ports")
		serves := slices.ContainsFunc(ports, func(p any) bool {
			one, ok := p.(map[string]any)
			return ok && one["port"] == port
		})
		if err != nil || !serves {
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
