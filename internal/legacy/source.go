package legacy

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

// Source gives read access to the legacy clusters of one management cluster, live or from a snapshot.
// A Source is safe for concurrent use; Load holds memory for one cluster only, so a fleet can be worked through in a bounded pool.
type Source interface {
	// Describe names the source for reports: "live https://…" or the snapshot's path.
	Describe() string
	// IDs lists every cluster the source knows a KVMConfig or a KVMClusterConfig or a namespace with VM pods of, sorted.
	// Records elsewhere (StorageConfig, Release) do not make a cluster.
	IDs(ctx context.Context) ([]string, error)
	// Load assembles the picture of one cluster. It fails with ErrNotFound for an unknown id;
	// whatever is wrong with the cluster's objects is in Cluster.Problems instead.
	Load(ctx context.Context, id string) (*Cluster, error)
	// Fleet returns what belongs to the management cluster as a whole.
	Fleet(ctx context.Context) (*Fleet, error)
	// Close gives back what the source holds.
	Close() error
}

// Fleet is what the source knows beyond single clusters.
type Fleet struct {
	// Hosts are the management cluster's nodes.
	Hosts []Host
	// CRDs are the names of the custom resource definitions with their served versions and labels; nil when the source cannot tell.
	CRDs []CRD
	// Volumes are those that nobody has claimed, or whose claim is gone, sorted by name.
	Volumes []Volume
	// Provisioners are the names of storage classes, with what makes volumes of them; nil when the source cannot tell.
	Provisioners map[string]string
	// Records are cluster ids that only bookkeeping knows (StorageConfig), sorted.
	Records []string
	// Problems are what is wrong with the input and belongs to no cluster (unreadable files, objects without a home).
	Problems []finding.Finding
}

// Host is one node of the management cluster.
type Host struct {
	Name   string
	Labels map[string]string
	Ready  bool
	// Schedulable is false on cordoned hosts.
	Schedulable bool
	// CPU is in cores, Memory in bytes: allocatable of the host.
	CPU, Memory int64
}

// Volume is a volume that a claim may still get, if need be after somebody has freed it.
type Volume struct {
	Name  string
	Class string
	// Bytes is how large it is.
	Bytes int64
	// Modes are the ways in which it can be mounted.
	Modes []corev1.PersistentVolumeAccessMode
	// Released is the claim, namespace/name, that had it and is gone: its data are still there, and no other claim gets it. Empty for a free one.
	Released string
}

// CRD is an installed custom resource definition.
type CRD struct {
	Name     string
	Labels   map[string]string
	Versions []string
}
