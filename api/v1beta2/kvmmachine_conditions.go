package v1beta2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GetConditions returns the conditions of a KVMMachine.
func (m *KVMMachine) GetConditions() []metav1.Condition { return m.Status.Conditions }

// SetConditions replaces the conditions of a KVMMachine.
func (m *KVMMachine) SetConditions(conditions []metav1.Condition) { m.Status.Conditions = conditions }
