package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

func configExists(v *view) verdict {
	if v.config == nil {
		return failed(nil, "no KVMConfig of cluster %s was found", v.cluster.ID)
	}
	return held("%s", v.cluster.Config.Ref)
}

func readable(v *view) verdict {
	items := make([]string, 0, len(v.cluster.Problems))
	worst := Pass
	for _, problem := range v.cluster.Problems {
		switch problem.Severity {
		case finding.Error, finding.Block, finding.Decide:
			worst = worse(worst, Block)
		case finding.Warn:
			worst = worse(worst, Warn)
		case finding.Info:
			continue
		default:
			worst = worse(worst, Block)
		}
		items = append(items, describeFinding(problem))
	}
	if len(items) == 0 {
		return held("nothing was unreadable or contradictory")
	}
	return failed(items, "%s while reading", plural(len(items), "problem", "problems")).as(worst)
}

func describeFinding(problem finding.Finding) string {
	parts := []string{problem.ID}
	if problem.Object != "" {
		parts = append(parts, problem.Object)
	}
	if problem.Path != "" {
		parts = append(parts, problem.Path)
	}
	return strings.Join(parts, " ") + ": " + problem.Message
}

// said is one place that names a property, for checks that compare all of them.
type said struct{ where, value string }

// contradictions lists the places that do not say what is wanted.
func contradictions(all []said, want string) []string {
	var items []string
	for _, one := range all {
		if one.value != "" && one.value != want {
			items = append(items, fmt.Sprintf("%s says %q", one.where, one.value))
		}
	}
	return items
}

func sameID(v *view) verdict {
	id := v.cluster.ID
	all := []said{
		{"KVMConfig name", v.config.Name},
		{"KVMConfig spec.cluster.id", cmp.Or(v.config.Spec.Cluster.ID, "(empty)")},
		{"KVMConfig label " + labelCluster, v.config.Labels[labelCluster]},
	}
	if document := v.cluster.ClusterConfig; document != nil {
		all = append(
			all,
			said{"KVMClusterConfig spec.guest.id", document.Object.Spec.Guest.ID},
			said{"KVMClusterConfig label " + labelCluster, document.Object.Labels[labelCluster]},
		)
	}
	if document := v.cluster.Flannel; document != nil {
		all = append(
			all,
			said{"FlannelConfig spec.cluster.id", document.Object.Spec.Cluster.ID},
			said{"FlannelConfig spec.cluster.namespace", document.Object.Spec.Cluster.Namespace},
		)
	}
	if document := v.cluster.Namespace; document != nil {
		all = append(all, said{"Namespace label cluster", document.Object.Labels["cluster"]})
	}
	for _, document := range v.cluster.Deployments {
		all = append(all, said{document.Ref.String() + " label " + labelCluster, document.Object.Labels[labelCluster]})
	}
	if items := contradictions(all, id); len(items) > 0 {
		return failed(items, "not every object names cluster %s", id)
	}
	return held("%s in %s", id, plural(len(all), "place", "places"))
}

func sameOrganization(v *view) verdict {
	organization := v.cluster.Organization
	if organization == "" {
		return failed(nil, "no object names the organization")
	}
	if problems := validation.IsDNS1123Label(TargetNamespace(organization)); len(problems) > 0 {
		return failed([]string{organization}, "%s is no valid namespace name", TargetNamespace(organization))
	}
	var all []said
	if v.config != nil {
		all = append(
			all,
			said{"KVMConfig spec.cluster.customer.id", v.config.Spec.Cluster.Customer.ID},
			said{"KVMConfig label " + labelOrganization, v.config.Labels[labelOrganization]},
		)
	}
	if document := v.cluster.ClusterConfig; document != nil {
		all = append(
			all,
			said{"KVMClusterConfig spec.guest.owner", document.Object.Spec.Guest.Owner},
			said{"KVMClusterConfig label " + labelOrganization, document.Object.Labels[labelOrganization]},
		)
	}
	if document := v.cluster.Flannel; document != nil {
		all = append(all, said{"FlannelConfig spec.cluster.customer", document.Object.Spec.Cluster.Customer})
	}
	if document := v.cluster.Namespace; document != nil {
		all = append(all, said{"Namespace label customer", document.Object.Labels["customer"]})
	}
	if items := contradictions(all, organization); len(items) > 0 {
		return failed(items, "not every object names organization %s", organization)
	}
	return held("%s, so the Cluster API objects go to namespace %s", organization, v.Namespace)
}

func notDeleted(v *view) verdict {
	var items []string
	for _, object := range metadata(v.cluster) {
		if object.meta.GetDeletionTimestamp() != nil && object.ref.Kind != "Pod" {
			items = append(items, object.ref.String())
		}
	}
	if document := v.cluster.Namespace; document != nil && document.Object.Status.Phase == corev1.NamespaceTerminating {
		items = append(items, document.Ref.String())
	}
	if len(items) > 0 {
		return failed(items, "%s on the way out", plural(len(distinct(items)), "object is", "objects are"))
	}
	return held("no deletion timestamp on any object")
}

func created(v *view) verdict {
	conditions := v.config.Status.Cluster.Conditions
	for _, condition := range conditions {
		if condition.Type == "Deleting" && condition.Status == "True" {
			return failed(nil, "the operator reports the condition Deleting")
		}
	}
	for _, condition := range conditions {
		if (condition.Type == "Created" || condition.Type == "Updated") && condition.Status == "True" {
			return held("condition %s since %s", condition.Type, condition.LastTransitionTime.UTC().Format("2006-01-02 15:04 UTC"))
		}
	}
	return failed(nil, "the operator has reported no condition Created: it never reached the workload API, or creation is still going on")
}

func noUpgrade(v *view) verdict {
	var items []string
	for _, condition := range v.config.Status.Cluster.Conditions {
		if condition.Type == "Updating" && condition.Status == "True" {
			items = append(items, "KVMConfig condition Updating since "+condition.LastTransitionTime.UTC().Format("2006-01-02 15:04 UTC"))
		}
	}
	wantRelease, wantBundle := v.release(), v.config.Labels[labelOperator]
	for _, node := range v.cluster.Nodes {
		if node.Deployment == nil {
			continue
		}
		deployment := &node.Deployment.Object
		release, bundle := deployment.Annotations[annotationRelease], deployment.Annotations[annotationBundle]
		if release != wantRelease || bundle != wantBundle {
			items = append(items, fmt.Sprintf("%s is of release %s (operator %s), the KVMConfig of %s (%s)",
				node.Deployment.Ref, cmp.Or(release, "?"), cmp.Or(bundle, "?"), cmp.Or(wantRelease, "?"), cmp.Or(wantBundle, "?")))
		}
		// The Deployment may have moved on already while its pod is still the old one: Recreate waits for the drain.
		if node.Pod != nil && bundle != "" && node.Pod.Object.Labels[labelOperator] != bundle {
			items = append(items, fmt.Sprintf("%s was made by operator %s, its Deployment is of %s",
				node.Pod.Ref, cmp.Or(node.Pod.Object.Labels[labelOperator], "?"), bundle))
		}
		if deployment.Status.ObservedGeneration < deployment.Generation {
			items = append(items, node.Deployment.Ref.String()+" has a change that was not acted upon yet")
		}
	}
	if len(items) > 0 {
		return failed(items, "the cluster is on its way from one version to another")
	}
	return held("all Deployments and pods are of release %s, operator %s", wantRelease, wantBundle)
}

func pairedLists(v *view) verdict {
	spec := &v.config.Spec
	var items []string
	if have, sized := len(spec.Cluster.Masters), len(spec.KVM.Masters); have != sized {
		items = append(items, fmt.Sprintf("%d masters, but %d sizes for masters", have, sized))
	}
	if have, sized := len(spec.Cluster.Workers), len(spec.KVM.Workers); have != sized {
		items = append(items, fmt.Sprintf("%d workers, but %d sizes for workers", have, sized))
	}
	seen := map[string]bool{}
	for _, node := range v.cluster.Nodes {
		if node.ID == "" {
			items = append(items, fmt.Sprintf("%s number %d has no id", node.Role, node.Position))
			continue
		}
		if seen[node.ID] {
			items = append(items, "node id "+node.ID+" is used twice")
		}
		seen[node.ID] = true
	}
	if len(items) > 0 {
		return failed(items, "the KVMConfig contradicts itself about its nodes")
	}
	return held("%s, %s", plural(len(spec.Cluster.Masters), "master", "masters"), plural(len(spec.Cluster.Workers), "worker", "workers"))
}

func translatable(v *view) verdict {
	var items []string
	for _, problem := range v.Translation {
		if problem.Severity == finding.Block || problem.Severity == finding.Error {
			items = append(items, describeFinding(problem))
		}
	}
	if len(items) > 0 {
		return failed(items, "%s no place in the new cluster", plural(len(items), "setting has", "settings have"))
	}
	return held("every setting was carried over, derived or dropped for a stated reason")
}

// SettingsDecided is the check that sums up what the translation leaves to a human: every decision it counts is a finding of its own, too.
const SettingsDecided = "CHK-TRN-002"

func decided(v *view) verdict {
	var items []string
	for _, problem := range v.Translation {
		if problem.Open() {
			items = append(items, describeFinding(problem))
		}
	}
	if len(items) > 0 {
		return failed(items, "%s for a human", plural(len(items), "setting waits", "settings wait"))
	}
	return held("no decision is open")
}

func onlyOperatorsWrite(v *view) verdict {
	latest := map[string]writer{}
	for _, one := range v.writers {
		if expectedManager(one.manager) || v.Now.Sub(one.at) > foreignWriterAge {
			continue
		}
		key := one.manager + " wrote " + one.object
		if have, ok := latest[key]; !ok || one.at.After(have.at) {
			latest[key] = one
		}
	}
	items := make([]string, 0, len(latest))
	for key, one := range latest {
		when := "at an unknown time"
		if !one.at.IsZero() {
			when = one.at.UTC().Format("2006-01-02 15:04 UTC")
		}
		items = append(items, key+", last "+when)
	}
	if len(items) > 0 {
		slices.Sort(items)
		return failed(items, "%s in the last 7 days besides the legacy operators", plural(len(latest), "write", "writes"))
	}
	return held("only the legacy operators and Kubernetes itself wrote in the last 7 days")
}

// expectedManager tells whether a field manager belongs to the legacy platform, to Kubernetes, or to this program.
// Managers are named after the program's binary, so versions do not show.
func expectedManager(manager string) bool {
	switch manager {
	case fieldOwner, "capk-controller",
		"kube-controller-manager", "kube-scheduler", "kube-apiserver", "kubelet", "hyperkube", "cloud-controller-manager",
		"kvm-operator", "cluster-operator", "cert-operator", "flannel-operator", "node-operator", "app-operator", "release-operator",
		"kubernetesd", "cluster-service", "k8s-endpoint-updater", "shutdown-deferrer", "cluster-apiserver", "nginx-ingress-controller":
		return true
	}
	return strings.HasPrefix(manager, "kvm-operator-") || strings.HasPrefix(manager, "cluster-operator-")
}

// steeringMarks are the annotations and labels by which a tool says that it owns an object, by prefix, with the tool's name.
func steeringMarks() []said {
	return []said{
		{"Argo CD", "argocd.argoproj.io/"},
		{"Flux", "kustomize.toolkit.fluxcd.io/"},
		{"Flux", "helm.toolkit.fluxcd.io/"},
		{"Flux", "fluxcd.io/"},
		{"Helm", "meta.helm.sh/release-name"},
		{"cluster-autoscaler", "cluster-autoscaler.kubernetes.io/"},
		{"cluster-autoscaler", "cluster.k8s.io/cluster-api-autoscaler-"},
		{"descheduler", "descheduler.alpha.kubernetes.io/"},
	}
}

func notSteered(v *view) verdict {
	var items []string
	for _, object := range metadata(v.cluster) {
		for _, marks := range []map[string]string{object.meta.GetLabels(), object.meta.GetAnnotations()} {
			for key := range marks {
				for _, mark := range steeringMarks() {
					if strings.HasPrefix(key, mark.value) {
						items = append(items, fmt.Sprintf("%s is marked by %s (%s)", object.ref, mark.where, key))
					}
				}
			}
		}
	}
	if v.config != nil && v.config.Spec.Cluster.Scaling.Min != v.config.Spec.Cluster.Scaling.Max {
		scaling := v.config.Spec.Cluster.Scaling
		items = append(items, fmt.Sprintf("KVMConfig allows %d to %d workers: something may scale it", scaling.Min, scaling.Max))
	}
	if len(items) > 0 {
		return failed(items, "other tools feel responsible for objects of this cluster")
	}
	return held("no GitOps tool or autoscaler has marked an object")
}

// nodesOf returns the nodes of the given role that have a pod.
func nodesOf(v *view, role legacy.Role) []legacy.Node {
	var nodes []legacy.Node
	for _, node := range v.cluster.Nodes {
		if node.Role == role && node.Pod != nil {
			nodes = append(nodes, node)
		}
	}
	return nodes
}
