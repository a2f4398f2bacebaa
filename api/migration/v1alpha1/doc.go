// Package v1alpha1 holds the API group of the migration: ClusterMigration, the record of one cluster's migration in the management
// cluster, and the version that every document of migrate carries.
//
// +kubebuilder:object:generate=true
// +groupName=migration.giantswarm.io
//
// The lines with a plus sign are for controller-gen.
package v1alpha1
