package v1beta2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GetConditions returns the conditions of a KVMCluster.
func (c *KVMCluster) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions of a KVMCluster.
func (c *KVMCluster) SetConditions(conditions []metav1.Condition) { c.Status.Conditions = conditions }
