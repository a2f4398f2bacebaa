package legacy

import (
	"context"
	"errors"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrNotFound tells that a source knows no cluster of the given id.
var ErrNotFound = errors.New("no such legacy cluster")

// Options say how to read. The zero value is usable.
type Options struct {
	// StorageConfig says where cluster-service keeps its records.
	StorageConfig StorageConfigOptions
	// WorkloadReader returns read access to a workload cluster. Only live sources use it; nil leaves Cluster.Inside empty.
	// The cluster it gets is complete but for Inside and the Nodes' workload Node.
	WorkloadReader func(ctx context.Context, cluster *Cluster) (client.Reader, error)
	// Definitions asks for the CustomResourceDefinitions of [Fleet] without their schemas, which are megabytes. Only live sources use it; nil reads whole ones.
	Definitions func(ctx context.Context) ([]CRD, error)
	// Unshared makes a live source list kinds that all clusters share again for every Load. Without it they are listed once, so a
	// source shows the management cluster at one time, and a fleet of 500 costs one list of namespace default instead of 500.
	Unshared bool
	// MaxObjectBytes limits one object, default 8 MiB: an API server stores 1.5 MiB at most.
	MaxObjectBytes int64
	// MaxFileBytes limits one YAML file, default 64 MiB. JSON files are read object by object and are not limited.
	MaxFileBytes int64
	// MaxArchiveBytes limits what an archive may unpack to, default 8 GiB.
	MaxArchiveBytes int64
	// MaxIgnitionBytes limits one decoded Ignition document, default 16 MiB.
	MaxIgnitionBytes int64
	// PageSize is the number of objects a live source asks for at once, default 500.
	PageSize int64
}

// StorageConfigOptions locate the records of cluster-service: name, namespace and layout are installation configuration.
type StorageConfigOptions struct {
	// Namespace and Name default to giantswarm/cluster-service.
	Namespace, Name string
	// Keys are the layouts of keys that belong to a cluster: <id> stands for the cluster id, <org> for an organization, and a
	// trailing … for anything below. Default: /cluster/<id>/… and /organization/<org>/cluster/<id>.
	Keys []string
}

const (
	mebibyte = 1 << 20

	// maxDepth is far beyond any Kubernetes object (CRD schemas come to about 40) and far below what would hurt a stack.
	maxDepth = 200
)

// withDefaults fills in everything the caller left open.
func (o Options) withDefaults() Options {
	setDefault(&o.StorageConfig.Namespace, "giantswarm")
	setDefault(&o.StorageConfig.Name, "cluster-service")
	if len(o.StorageConfig.Keys) == 0 {
		o.StorageConfig.Keys = []string{"/cluster/<id>/…", "/organization/<org>/cluster/<id>"}
	}
	setDefault(&o.MaxObjectBytes, 8*mebibyte)
	setDefault(&o.MaxFileBytes, 64*mebibyte)
	setDefault(&o.MaxArchiveBytes, 8192*mebibyte)
	setDefault(&o.MaxIgnitionBytes, 16*mebibyte)
	setDefault(&o.PageSize, 500)
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// clusterOfKey returns the id of the cluster a StorageConfig key belongs to.
func (o StorageConfigOptions) clusterOfKey(key string) (string, bool) {
	for _, layout := range o.Keys {
		if id, ok := matchKey(layout, key); ok {
			return id, true
		}
	}
	return "", false
}

// matchKey compares a key with a layout, segment by segment.
func matchKey(layout, key string) (id string, ok bool) {
	want, have := strings.Split(layout, "/"), strings.Split(key, "/")
	for i, segment := range want {
		if segment == "…" || segment == "..." {
			return id, id != "" && len(have) > i
		}
		if i >= len(have) {
			return "", false
		}
		switch segment {
		case "<id>":
			id = have[i]
		case "<org>":
			if have[i] == "" {
				return "", false
			}
		case have[i]:
		default:
			return "", false
		}
	}
	return id, id != "" && len(have) == len(want)
}
