package desired

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kinds of the legacy platform, all in version v1alpha1.
const (
	KindKVMConfig        = "KVMConfig"
	KindKVMClusterConfig = "KVMClusterConfig"
	KindCertConfig       = "CertConfig"
	KindFlannelConfig    = "FlannelConfig"
	KindDrainerConfig    = "DrainerConfig"
	KindRelease          = "Release"
)

// GVK returns the full name of a kind of the legacy platform.
func GVK(kind string) schema.GroupVersionKind {
	group := "core.giantswarm.io"
	switch kind {
	case KindKVMConfig:
		group = "provider.giantswarm.io"
	case KindRelease:
		group = "release.giantswarm.io"
	}
	return schema.GroupVersionKind{Group: group, Version: "v1alpha1", Kind: kind}
}

// Labels and annotations that operators read.
const (
	OperatorVersionLabel = "kvm-operator.giantswarm.io/version"
	ReleaseVersionLabel  = "release.giantswarm.io/version"
	ClusterLabel         = "giantswarm.io/cluster"
	OrganizationLabel    = "giantswarm.io/organization"
	ManagedByLabel       = "giantswarm.io/managed-by"
	PodWatcherLabel      = "kvm-operator.giantswarm.io/pod-watcher"

	ReleaseVersionAnnotation = "giantswarm.io/release-version"
	BundleVersionAnnotation  = "giantswarm.io/version-bundle-version"
	IPAnnotation             = "endpoint.kvm.giantswarm.io/ip"
	ServiceAnnotation        = "endpoint.kvm.giantswarm.io/service"
	DrainedAnnotation        = "endpoint.kvm.giantswarm.io/drained"
	TerminateAnnotation      = "node.giantswarm.io/terminate-unhealthy"

	// NodeReadyCondition is the readiness gate of workers' pods.
	NodeReadyCondition = "kvm-operator.giantswarm.io/workload-cluster-node-ready"

	// Operator is the name operators put into labels.
	Operator = "kvm-operator"
)

// Roles of nodes.
const (
	Master = "master"
	Worker = "worker"
)

// Node is one entry of spec.cluster.masters or workers.
type Node struct {
	ID string `json:"id"`
}

// HostVolume is a directory of a host that a worker sees.
type HostVolume struct {
	MountTag string `json:"mountTag"`
	HostPath string `json:"hostPath"`
}

// Size is one entry of spec.kvm.masters or workers.
type Size struct {
	CPUs               int          `json:"cpus"`
	Disk               float64      `json:"disk"`
	Memory             string       `json:"memory"`
	DockerVolumeSizeGB int          `json:"dockerVolumeSizeGB"`
	HostVolumes        []HostVolume `json:"hostVolumes"`
}

// PortMapping is a node port of the workers' Service.
type PortMapping struct {
	Name       string `json:"name"`
	NodePort   int32  `json:"nodePort"`
	TargetPort int32  `json:"targetPort"`
}

// Config is the part of a KVMConfig that decides about objects.
type Config struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Cluster struct {
			ID       string `json:"id"`
			Customer struct {
				ID string `json:"id"`
			} `json:"customer"`
			Etcd struct {
				Domain string `json:"domain"`
			} `json:"etcd"`
			Kubernetes struct {
				API struct {
					Domain     string `json:"domain"`
					SecurePort int32  `json:"securePort"`
				} `json:"api"`
			} `json:"kubernetes"`
			Masters []Node `json:"masters"`
			Workers []Node `json:"workers"`
		} `json:"cluster"`
		KVM struct {
			K8sKVM struct {
				StorageType string `json:"storageType"`
			} `json:"k8sKVM"`
			Masters []Size `json:"masters"`
			Workers []Size `json:"workers"`
			Network struct {
				Flannel struct {
					VNI int `json:"vni"`
				} `json:"flannel"`
			} `json:"network"`
			PortMappings []PortMapping `json:"portMappings"`
		} `json:"kvm"`
		VersionBundle struct {
			Version string `json:"version"`
		} `json:"versionBundle"`
	} `json:"spec"`
	Status struct {
		Cluster struct {
			Conditions []struct {
				Type   string `json:"type"`
				Status string `json:"status"`
			} `json:"conditions"`
		} `json:"cluster"`
		KVM struct {
			NodeIndexes map[string]int `json:"nodeIndexes"`
		} `json:"kvm"`
	} `json:"status"`
}

// Read makes a Config of a KVMConfig.
func Read(o *unstructured.Unstructured) (*Config, error) {
	c := &Config{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, c); err != nil {
		return nil, fmt.Errorf("reading KVMConfig %s: %w", o.GetName(), err)
	}
	k := &c.Spec.KVM
	if len(k.Masters) != len(c.Spec.Cluster.Masters) || len(k.Workers) != len(c.Spec.Cluster.Workers) {
		return nil, fmt.Errorf("reading KVMConfig %s: its lists of nodes and of sizes differ in length", o.GetName())
	}
	return c, nil
}

// ID is the cluster's id.
func (c *Config) ID() string { return c.Spec.Cluster.ID }

// VNI is the number of the cluster's network.
func (c *Config) VNI() int { return c.Spec.KVM.Network.Flannel.VNI }

// Version of the operator in charge.
func (c *Config) Version() string { return c.Labels[OperatorVersionLabel] }

// Installation is configuration of the whole management cluster.
type Installation struct {
	DNSServers, NTPServers string
	// Registry is where pods' images come from.
	Registry string
}

// DefaultInstallation is the one of the recordings.
func DefaultInstallation() Installation {
	return Installation{DNSServers: "10.10.0.2,10.10.0.3", NTPServers: "10.10.0.4", Registry: "quay.io"}
}

// Input is everything that objects depend on.
type Input struct {
	*Config
	Installation

	// Components are versions of the release's components by name.
	Components map[string]string
	// HostVolumeSizes are capacities of the volumes with a mount tag.
	HostVolumeSizes map[string]string
}

// Components reads the versions of a Release's components.
func Components(release *unstructured.Unstructured) (map[string]string, error) {
	list, _, err := unstructured.NestedSlice(release.Object, "spec", "components")
	if err != nil {
		return nil, fmt.Errorf("reading Release %s: %w", release.GetName(), err)
	}
	versions := map[string]string{}
	for _, x := range list {
		component, ok := x.(map[string]any)
		if !ok {
			continue
		}
		name, _ := component["name"].(string)
		version, _ := component["version"].(string)
		versions[name] = version
	}
	return versions, nil
}

// ClusterRole is the name of the role that an operator's chart brings along.
func ClusterRole(version string) string {
	return Operator + "-" + strings.ReplaceAll(version, ".", "-")
}
