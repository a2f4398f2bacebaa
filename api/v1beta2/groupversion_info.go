package v1beta2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// GroupName is the API group that Cluster API expects of every infrastructure provider.
	GroupName = "infrastructure.cluster.x-k8s.io"
	// Version is the only version served so far. It is named after the Cluster API contract it implements.
	Version = "v1beta2"
)

// GroupVersion returns the group and version of this package's kinds.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: GroupName, Version: Version}
}

// AddToScheme registers this package's kinds.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(),
		&KVMCluster{}, &KVMClusterList{},
		&KVMClusterTemplate{}, &KVMClusterTemplateList{},
		&KVMMachine{}, &KVMMachineList{},
		&KVMMachineTemplate{}, &KVMMachineTemplateList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}
