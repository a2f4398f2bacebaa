package v1alpha1

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
)
