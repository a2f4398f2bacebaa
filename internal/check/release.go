package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

const (
	// lowestMinor is the oldest legacy Kubernetes a migration can start from: the first new control plane is one minor above it, and
	// CAPBK refuses anything below 1.22 (design decision 7).
	lowestMinor = 21
	// supportedMinor is the oldest workload Kubernetes that Cluster API v1.14 is tested with.
	supportedMinor = 31
	// pauseSince is the first kvm-operator built on an operatorkit that honours the pause annotation.
	pauseSince = "3.14.0"
	// foreignWriterAge is how far back a foreign write counts.
	foreignWriterAge = 7 * 24 * time.Hour
)

func releaseKnown(v *view) verdict {
	release := v.release()
	if release == "" {
		return failed([]string{v.cluster.Config.Ref.String()}, "the KVMConfig has no label %s", labelRelease)
	}
	if v.cluster.Release == nil {
		return failed([]string{"Release/v" + release}, "the release object is missing")
	}
	var items []string
	for _, component := range []string{"kubernetes", "etcd", "calico", "containerlinux"} {
		if v.component(component) == "" {
			items = append(items, "no component "+component)
		}
	}
	if len(items) > 0 {
		return failed(items, "%s does not name every component", v.cluster.Release.Ref)
	}
	all := []said{}
	if document := v.cluster.ClusterConfig; document != nil {
		all = append(
			all,
			said{"KVMClusterConfig spec.guest.releaseVersion", strings.TrimPrefix(document.Object.Spec.Guest.ReleaseVersion, "v")},
			said{"KVMClusterConfig label " + labelRelease, strings.TrimPrefix(document.Object.Labels[labelRelease], "v")},
		)
	}
	if items := contradictions(all, release); len(items) > 0 {
		return failed(items, "not every object names release %s", release)
	}
	return held("release %s, Kubernetes %s, etcd %s", release, v.component("kubernetes"), v.component("etcd"))
}

func componentsRun(v *view) verdict {
	var items []string
	pods := 0
	for _, node := range v.cluster.Nodes {
		if node.Pod == nil {
			continue
		}
		pods++
		for _, component := range []string{"kubernetes", "etcd", "calico", "containerlinux"} {
			want, have := v.component(component), node.Pod.Object.Annotations[annotationComponent+component]
			if have != want {
				items = append(items, fmt.Sprintf("%s runs %s %s, the release has %s", node.Pod.Ref, component, cmp.Or(have, "of unknown version"), want))
			}
		}
	}
	if len(items) > 0 {
		return failed(items, "not every VM runs what release %s says", v.release())
	}
	return held("%s of release %s", plural(pods, "VM", "VMs"), v.release())
}

func oneKubernetes(v *view) verdict {
	by := map[string][]string{}
	note := func(version, who string) {
		version = strings.TrimPrefix(version, "v")
		by[version] = append(by[version], who)
	}
	from := "VM pods; the workload cluster was not looked into"
	if v.cluster.Inside != nil && len(v.cluster.Inside.Nodes) > 0 {
		from = "Nodes and VM pods"
		for _, node := range v.cluster.Inside.Nodes {
			note(node.Object.Status.NodeInfo.KubeletVersion, "Node/"+node.Object.Name)
		}
	}
	for _, node := range v.cluster.Nodes {
		if node.Pod != nil {
			note(node.Pod.Object.Annotations[annotationComponent+"kubernetes"], node.Pod.Ref.String())
		}
	}
	if len(by) == 1 {
		for version := range by {
			if version != "" {
				return held("%s, by %s", version, from)
			}
		}
	}
	var items []string
	for version, who := range by {
		slices.Sort(who)
		items = append(items, fmt.Sprintf("%s: %s", cmp.Or(version, "unknown"), strings.Join(who, ", ")))
	}
	return failed(items, "%s at work", plural(len(by), "version is", "versions are"))
}

func firstStepPossible(v *view) verdict {
	have := v.running("kubernetes")
	number, ok := minor(have)
	switch {
	case !ok:
		return failed(nil, "the Kubernetes version %q cannot be read", have)
	case number < lowestMinor:
		return failed(nil, "Kubernetes %s; the first new control plane would be 1.%d, and Cluster API makes none below 1.22", have, number+1)
	case number > lowestMinor:
		return held("%s, so the first new control plane is 1.%d", have, number)
	default:
		return held("%s, so the first new control plane is 1.%d", have, number+1)
	}
}

func supportedKubernetes(v *view) verdict {
	have := v.running("kubernetes")
	number, ok := minor(have)
	if !ok {
		return failed(nil, "the Kubernetes version %q cannot be read", have)
	}
	if number < supportedMinor {
		return failed(nil, "Kubernetes %s is below 1.%d, the oldest that Cluster API v1.14 is tested with; it works, and upgrades must follow", have, supportedMinor)
	}
	return held("%s", have)
}

func obeysPause(v *view) verdict {
	operator := cmp.Or(v.config.Labels[labelOperator], v.config.Spec.VersionBundle.Version)
	if operator == "" {
		return failed([]string{v.cluster.Config.Ref.String()}, "no object names the kvm-operator's version").as(Block)
	}
	if older(operator, pauseSince) {
		return failed([]string{"kvm-operator " + operator},
			"kvm-operator %s does not know the pause annotation: the fence hides the KVMConfig and the pods from it by taking the label %s away", operator, labelOperator)
	}
	return held("kvm-operator %s obeys the pause annotation", operator)
}

func othersObeyPause(v *view) verdict {
	var items []string
	if document := v.cluster.ClusterConfig; document != nil {
		items = append(items, "cluster-operator "+cmp.Or(document.Object.Spec.VersionBundle.Version, "of unknown version")+
			": the fence changes spec.versionBundle.version of "+document.Ref.String()+", so that no running version feels addressed")
	}
	if document := v.cluster.Flannel; document != nil {
		items = append(items, "flannel-operator "+cmp.Or(document.Object.Spec.VersionBundle.Version, "of unknown version")+
			": the fence hides "+document.Ref.String()+" from it where it can, else its Deployment has to be scaled to zero")
	}
	if len(items) > 0 {
		return failed(items, "%s the pause annotation; the fence silences them another way, and proves it", plural(len(items), "operator ignores", "operators ignore"))
	}
	return held("neither cluster-operator nor flannel-operator has an object of this cluster")
}

// oneOperator collects who names which operator version, then tells of operators with two, and of versions that serve others.
func oneOperator(v *view) verdict {
	by := operatorVersions(v)
	var items, names []string
	for operator, versions := range by {
		names = append(names, operator)
		if len(versions) < 2 {
			continue
		}
		for version, who := range versions {
			slices.Sort(who)
			items = append(items, fmt.Sprintf("%s %s: %s", operator, version, strings.Join(who, ", ")))
		}
	}
	if len(items) > 0 {
		return failed(items, "several versions of one operator work for this cluster; the fence must silence each")
	}
	names = append(names, serveOthers(v, by)...)
	slices.Sort(names)
	return held("%s", strings.Join(names, ", "))
}

// operatorVersions returns the objects that name a version, by operator and version.
func operatorVersions(v *view) map[string]map[string][]string {
	by := map[string]map[string][]string{}
	note := func(operator, version, who string) {
		if version == "" {
			return
		}
		if by[operator] == nil {
			by[operator] = map[string][]string{}
		}
		by[operator][version] = append(by[operator][version], who)
	}
	note("kvm-operator", v.config.Labels[labelOperator], "KVMConfig")
	for _, document := range v.cluster.Pods {
		note("kvm-operator", document.Object.Labels[labelOperator], document.Ref.String())
	}
	for _, document := range v.cluster.CertConfigs {
		note("cert-operator", document.Object.Labels[labelCertOperator], document.Ref.String())
	}
	if document := v.cluster.ClusterConfig; document != nil {
		for _, bundle := range document.Object.Spec.Guest.VersionBundles {
			if bundle.Name == "kvm-operator" || bundle.Name == "cert-operator" {
				note(bundle.Name, bundle.Version, "KVMClusterConfig")
			}
		}
	}
	return by
}

// serveOthers lists running versions of the cluster's operators that the cluster does not name.
func serveOthers(v *view, by map[string]map[string][]string) []string {
	if v.Capabilities == nil {
		return nil
	}
	var names []string
	for _, running := range v.Capabilities.Operators {
		versions := by[running.Name]
		if running.Replicas > 0 && running.Version != "" && versions != nil && versions[running.Version] == nil {
			// Another version may still serve other clusters; it only matters for what it may have left running.
			names = append(names, running.Name+" "+running.Version+" (serves other clusters)")
		}
	}
	return names
}

func terminatorOff(v *view) verdict {
	if _, there := v.config.Annotations[annotationTerminate]; there {
		return failed([]string{v.cluster.Config.Ref.String()},
			"the annotation %s is set (its value does not matter): the operator deletes the pod of a VM whose Node is not ready", annotationTerminate)
	}
	return held("the annotation is absent; the fence silences the node deleter and the terminator in any case")
}

func vaultKept(v *view) verdict {
	ref := v.cluster.Config.Ref
	if v.config.Namespace != legacyNamespace || v.config.Name != v.cluster.ID {
		return failed([]string{ref.String()},
			"cert-operator looks for KVMConfig %s/%s at every start, and deletes the PKI of a cluster without one", legacyNamespace, v.cluster.ID)
	}
	return held("%s stays in place until the end: without it cert-operator deletes all CertConfigs and the PKI mount pki-%s", ref, v.cluster.ID)
}

// vmHosts are the hosts that hold a VM of this cluster, by host name.
func vmHosts(v *view) map[string][]legacy.Node {
	hosts := map[string][]legacy.Node{}
	for _, node := range v.cluster.Nodes {
		if node.Pod != nil && node.Pod.Object.Spec.NodeName != "" {
			hosts[node.Pod.Object.Spec.NodeName] = append(hosts[node.Pod.Object.Spec.NodeName], node)
		}
	}
	return hosts
}
