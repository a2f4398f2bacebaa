package seed

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

// Skipped is an object that was not loaded, and why.
type Skipped struct {
	Object string
	Reason string
}

// elsewhere are directories whose objects do not belong to a management cluster.
func elsewhere(name string) bool {
	return name == "workload-cluster" || name == "decoded" || name == "ca"
}

// collect reads all objects below the directories. With cluster ids given, the
// directories of other clusters are left out: a directory belongs to the cluster
// whose KVMConfig lies in it.
func collect(dirs, clusters []string) ([]*unstructured.Unstructured, error) {
	byDir := map[string][]*unstructured.Unstructured{}
	var order []string
	for _, root := range dirs {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return fmt.Errorf("looking for objects: %w", err)
			}
			if d.IsDir() {
				if elsewhere(d.Name()) && path != root {
					return filepath.SkipDir
				}
				return nil
			}
			if ext := filepath.Ext(path); ext != ".yaml" && ext != ".yml" {
				return nil
			}
			found, err := manifest.ReadFile(path)
			if err != nil {
				return err
			}
			dir := filepath.Dir(path)
			if _, seen := byDir[dir]; !seen {
				order = append(order, dir)
			}
			byDir[dir] = append(byDir[dir], found...)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}

	var objects []*unstructured.Unstructured
	for _, dir := range order {
		if !belongs(byDir[dir], clusters) {
			continue
		}
		objects = append(objects, byDir[dir]...)
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("looking for objects: there are none in %s", strings.Join(dirs, ", "))
	}
	return unique(objects), nil
}

func belongs(objects []*unstructured.Unstructured, clusters []string) bool {
	if len(clusters) == 0 {
		return true
	}
	for _, o := range objects {
		if o.GetKind() == "KVMConfig" {
			return slices.Contains(clusters, o.GetName())
		}
	}
	return true
}

// unique drops repeated objects: a Release lies with the management cluster and
// with every cluster that uses it.
func unique(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	seen := map[string]bool{}
	return slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		key := o.GetAPIVersion() + " " + manifest.Describe(o)
		again := seen[key]
		seen[key] = true
		return again
	})
}

// loadable splits off what cannot or should not be loaded.
func loadable(objects []*unstructured.Unstructured, opts Options) (keep []*unstructured.Unstructured, skipped []Skipped) {
	for _, o := range objects {
		if reason := skipReason(o, opts); reason != "" {
			skipped = append(skipped, Skipped{Object: manifest.Describe(o), Reason: reason})
			continue
		}
		keep = append(keep, o)
	}
	return keep, skipped
}

func skipReason(o *unstructured.Unstructured, opts Options) string {
	kind := o.GetKind()
	switch {
	case kind == "PodSecurityPolicy":
		return "PodSecurityPolicy is not served any more"
	case kind == "Ingress" && strings.HasSuffix(o.GetAPIVersion(), "/v1beta1"):
		return "Ingress v1beta1 is not served any more; the same object is there as v1"
	case kind == "Secret" && opts.SkipServiceAccountTokens && isToken(o):
		return "service-account tokens are left out"
	case !opts.ControllerManager:
		return ""
	case kind == "EndpointSlice":
		return "the controller manager derives it from Endpoints"
	case kind == "ConfigMap" && o.GetName() == "kube-root-ca.crt":
		return "the controller manager publishes its own"
	default:
		return ""
	}
}

func isToken(o *unstructured.Unstructured) bool {
	kind, _, err := unstructured.NestedString(o.Object, "type")
	return err == nil && kind == "kubernetes.io/service-account-token"
}

// stage says when an object is written; objects of one stage do not need each
// other. Unknown kinds are custom resources: they need their CRD only.
//
// Claims and volumes refer to each other by uid. Alone, the claim comes first,
// so that the volume can name its new uid. A controller manager declares a bound
// claim lost whose volume it does not know, so there the volume comes first.
func stage(kind string, controllerManager bool) int {
	switch kind {
	case manifest.CRDKind, "Namespace":
		return 0
	case "ServiceAccount", "ClusterRole", "Role", "Node", "StorageClass", "PriorityClass":
		return 1
	case "PersistentVolume":
		if controllerManager {
			return 1
		}
		return 3
	case "Endpoints", "Ingress":
		return 3
	case "EndpointSlice":
		return 4
	case "Deployment", "ReplicaSet", "DaemonSet", "StatefulSet", "Pod":
		return workloads
	default:
		return 2
	}
}

// workloads is the stage after all simple ones.
const workloads = 5

// isCustom says whether an API version belongs to a custom resource. Built-in
// groups have no dot, or end in k8s.io.
func isCustom(apiVersion string) bool {
	group, _, found := strings.Cut(apiVersion, "/")
	return found && strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io")
}

func ownedByCustom(o *unstructured.Unstructured) bool {
	return slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return isCustom(r.APIVersion) })
}
