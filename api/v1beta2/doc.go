// Package v1beta2 defines the API of the KVM infrastructure provider for Cluster API: KVMCluster, KVMMachine and their templates.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.cluster.x-k8s.io
//
// The lines with a plus sign are for controller-gen.
package v1beta2
