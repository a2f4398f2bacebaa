package seed

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

const tokenUIDAnnotation = "kubernetes.io/service-account.uid" //nolint:gosec // A name, not a token.

// strip returns a copy without what the server fills in.
func strip(o *unstructured.Unstructured) *unstructured.Unstructured {
	c := o.DeepCopy()
	manifest.Strip(c)
	return c
}

// status returns the status to write, with generations observed as the new
// object counts them: a seeded generation 3 on an object of generation 1 would
// make waiting tools believe the future has happened.
func status(o *unstructured.Unstructured, generation int64) (map[string]any, error) {
	s, _, err := unstructured.NestedMap(o.Object, "status")
	if err != nil {
		return nil, fmt.Errorf("reading status: %w", err)
	}
	if _, ok := s["observedGeneration"]; ok {
		s["observedGeneration"] = generation
	}
	return s, nil
}

// ownedBy says whether the object's controller is of a kind.
func ownedBy(o *unstructured.Unstructured, kind string) bool {
	for _, r := range o.GetOwnerReferences() {
		if r.Kind == kind && r.Controller != nil && *r.Controller {
			return true
		}
	}
	return false
}
