package v1beta2

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Size is an amount of memory or storage: a Kubernetes quantity such as 16Gi or 40G.
// A trailing B is allowed (8GB, 8GiB), because the provider's cluster templates use it.
// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9]+([.][0-9]+)?([KkMGT]i?B?)?$')",message="has to be a size without a blank, for example 16Gi or 40G"
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=32
type Size string

// Quantity parses the size.
func (s Size) Quantity() (resource.Quantity, error) {
	text := strings.TrimSuffix(string(s), "B")
	text = strings.Replace(text, "K", "k", 1)
	text = strings.Replace(text, "ki", "Ki", 1)
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return resource.Quantity{}, fmt.Errorf("parsing size %q: %w", string(s), err)
	}
	return quantity, nil
}
