package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// Group is the API group of everything about a migration.
	Group = "migration.giantswarm.io"
	// Version is the version of the group.
	Version = "v1alpha1"
	// APIVersion is what documents carry in their apiVersion field.
	APIVersion = Group + "/" + Version
)

// Kinds of the documents that migrate writes.
const (
	KindPlan        = "Plan"
	KindCheckReport = "CheckReport"
	KindInventory   = "Inventory"
	KindSnapshot    = "Snapshot"
	KindDecisions   = "Decisions"
	KindEvidence    = "Evidence"
	KindProof       = "Proof"
	KindRunReport   = "RunReport"
	KindEstimates   = "Estimates"
)

// Kind is the kind of the object that records a migration.
const Kind = "ClusterMigration"

// GroupVersion returns the group and version of this package's kinds.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: Version}
}

// AddToScheme registers this package's kinds.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(), &ClusterMigration{}, &ClusterMigrationList{})
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}
