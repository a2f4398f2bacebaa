package legacy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1alpha1 "github.com/giantswarm/apiextensions/v3/pkg/apis/core/v1alpha1"
	providerv1alpha1 "github.com/giantswarm/apiextensions/v3/pkg/apis/provider/v1alpha1"
	releasev1alpha1 "github.com/giantswarm/apiextensions/v3/pkg/apis/release/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

// input is everything a picture is assembled from; live and snapshot sources differ only in how they fill it.
type input struct {
	id   string
	opts Options
	// documents are the source's.
	documents *documents
	// brief leaves out what an inventory does not need.
	brief bool
	// objects are the objects of the management cluster that may belong to the cluster.
	objects []object
	// inside are the objects of the workload cluster; insideKnown tells whether anybody looked.
	inside      []object
	insideKnown bool
	redacted    bool
	// service is what the StorageConfig says about the cluster.
	service  *ServiceRecord
	problems []finding.Finding
}

// inBrief tells the kinds a brief picture is made of: what says how large a cluster is, which version it runs, and whether it runs.
func inBrief(ref Ref) bool {
	switch ref.Kind {
	case "KVMConfig", "KVMClusterConfig", "Namespace", "Pod", "Release", "PersistentVolumeClaim", "Cluster", "ClusterMigration", "KVMCluster":
		return true
	}
	return false
}

// assembler builds one picture.
type assembler struct {
	input
	c *Cluster
}

// assemble builds the picture of one cluster. It sorts objects into their places, then pairs up the nodes from the KVMConfig
// outwards, then compares what different records say. Whatever is wrong is a problem; nothing stops it.
func assemble(in input) *Cluster {
	a := &assembler{input: in, c: &Cluster{ID: in.id, Redacted: in.redacted, Certificates: map[string]*Certificate{}, Problems: in.problems}}
	slices.SortStableFunc(a.objects, func(x, y object) int { return byRef(x.ref, y.ref) })
	if a.redacted {
		a.problem(ProblemRedacted, "", "", "secret values of cluster %s are digests", in.id)
	}
	if faults := validation.IsDNS1123Label(in.id); len(faults) > 0 {
		a.problem(ProblemBadID, in.id, "spec.cluster.id", "%q is no name Kubernetes accepts", in.id)
	}
	configs := a.sort()
	a.config(configs)
	a.release()
	a.organization()
	a.nodes()
	a.workloadCluster()
	a.completeness()
	slices.SortFunc(a.c.Others, func(x, y Doc[unstructured.Unstructured]) int { return byRef(x.Ref, y.Ref) })
	finding.Sort(a.c.Problems)
	return a.c
}

func (a *assembler) problem(id, object, path, format string, args ...any) {
	a.c.Problems = append(a.c.Problems, problem(id, object, path, format, args...))
}

// decode decodes an object; what does not fit its type becomes a problem.
func decode[T any](a *assembler, o object) Doc[T] {
	return typed[T](o, func(path, what string) {
		a.problem(ProblemWrongType, o.ref.String(), path, "%s has an unusable field %s: %s", o.ref, path, what)
	})
}

// labelsOf returns the labels of a raw object; values that are no text are left out.
func labelsOf(raw map[string]any) map[string]string {
	found, _ := valueAt(raw, "metadata", "labels").(map[string]any)
	labels := make(map[string]string, len(found))
	for key, value := range found {
		if text, ok := value.(string); ok {
			labels[key] = text
		}
	}
	return labels
}

// sort gives every object its place and returns the KVMConfigs that claim the id.
func (a *assembler) sort() []Doc[KVMConfig] {
	var configs []Doc[KVMConfig]
	var clusterConfigs []Doc[corev1alpha1.KVMClusterConfig]
	var flannels []Doc[corev1alpha1.FlannelConfig]
	c := a.c
	lookedUpLater := func(object) {} // shared by all clusters
	places := map[string]func(object){
		"KVMConfig." + groupProvider:    into(a, &configs),
		"KVMClusterConfig." + groupCore: into(a, &clusterConfigs),
		"FlannelConfig." + groupCore:    into(a, &flannels),
		"CertConfig." + groupCore:       into(a, &c.CertConfigs),
		"Release." + groupRelease:       lookedUpLater,
		"StorageConfig." + groupCore:    lookedUpLater,
		"Node.":                         lookedUpLater,
		"Namespace.":                    a.namespace,
		"Secret.":                       a.secret,
		"Deployment.apps":               into(a, &c.Deployments),
		"Deployment.extensions":         into(a, &c.Deployments),
		"ReplicaSet.apps":               into(a, &c.ReplicaSets),
		"ReplicaSet.extensions":         into(a, &c.ReplicaSets),
		"Pod.":                          into(a, &c.Pods),
		"ConfigMap.":                    into(a, &c.ConfigMaps),
		"Service.":                      into(a, &c.Services),
		"Endpoints.":                    into(a, &c.Endpoints),
		"Ingress.networking.k8s.io":     a.ingress,
		"Ingress.extensions":            a.ingress,
		"PersistentVolumeClaim.":        into(a, &c.Claims),
		"ServiceAccount.":               into(a, &c.ServiceAccounts),
		"PersistentVolume.":             into(a, &c.Volumes),
		"ClusterRoleBinding.rbac.authorization.k8s.io": a.roleBinding,
	}
	for _, o := range a.objects {
		place := places[o.ref.Kind+"."+group(o.ref.APIVersion)]
		if place == nil {
			place = a.anything
		}
		place(o)
	}
	c.ClusterConfig = only(a, clusterConfigs)
	c.Flannel = only(a, flannels)
	return configs
}

// into is the place of a kind whose objects simply make a list.
func into[T any](a *assembler, list *[]Doc[T]) func(object) {
	return func(o object) { *list = append(*list, decode[T](a, o)) }
}

func (a *assembler) namespace(o object) {
	if o.ref.Name == a.id {
		doc := decode[corev1.Namespace](a, o)
		a.c.Namespace = &doc
	}
}

func (a *assembler) roleBinding(o object) {
	if o.ref.Name == a.id || o.ref.Name == a.id+"-psp" {
		a.c.RoleBindings = append(a.c.RoleBindings, decode[rbacv1.ClusterRoleBinding](a, o))
		return
	}
	a.c.Others = append(a.c.Others, other(o))
}

// anything takes kinds without a place of their own; what is not the cluster's is left out.
func (a *assembler) anything(o object) {
	switch {
	case isClusterAPI(o.ref):
		a.c.Existing = append(a.c.Existing, unstructured.Unstructured{Object: o.raw})
	case o.ref.Namespace == a.id || isLegacy(o.ref) || labelsOf(o.raw)[labelCluster] == a.id:
		a.c.Others = append(a.c.Others, other(o))
	}
}

func other(o object) Doc[unstructured.Unstructured] {
	return Doc[unstructured.Unstructured]{Ref: o.ref, Origin: o.origin, Raw: o.raw, Object: unstructured.Unstructured{Object: o.raw}}
}

// only returns the single object of a kind of which a cluster has one; of several the first counts.
func only[T any](a *assembler, docs []Doc[T]) *Doc[T] {
	if len(docs) == 0 {
		return nil
	}
	if len(docs) > 1 {
		a.problem(ProblemSeveralOfOne, docs[0].Ref.String(), "", "%d objects of kind %s name the cluster %s: %s", len(docs), docs[0].Ref.Kind, a.id, names(docs))
	}
	for i := range docs[1:] {
		a.keep(docs[1+i].Ref, docs[1+i].Origin, docs[1+i].Raw)
	}
	return &docs[0]
}

// keep remembers an object that lost against another of its kind: nothing may vanish from the picture.
func (a *assembler) keep(ref Ref, origin string, raw map[string]any) {
	a.c.Others = append(a.c.Others, other(object{ref: ref, origin: origin, raw: raw}))
}

func names[T any](docs []Doc[T]) string {
	list := make([]string, 0, len(docs))
	for _, doc := range docs {
		list = append(list, first(doc.Ref.Namespace+"/"+doc.Ref.Name))
	}
	return strings.Join(list, ", ")
}

// ingress decodes an ingress of any version into the current type; Raw stays as it was.
func (a *assembler) ingress(o object) {
	current := o
	if o.ref.APIVersion != networkingv1.SchemeGroupVersion.String() {
		current.raw = currentIngress(o.raw)
	}
	doc := decode[networkingv1.Ingress](a, current)
	doc.Raw = o.raw
	a.c.Ingresses = append(a.c.Ingresses, doc)
}

// currentIngress rewrites the backends of a v1beta1 ingress the way the API server does when it is asked for v1.
func currentIngress(raw map[string]any) map[string]any {
	raw = deepCopy(raw)
	raw["apiVersion"] = networkingv1.SchemeGroupVersion.String()
	spec, _ := raw["spec"].(map[string]any)
	if spec == nil {
		return raw
	}
	convert := func(holder map[string]any, from, to string) {
		backend, ok := holder[from].(map[string]any)
		if !ok {
			return
		}
		delete(holder, from)
		if name, found := backend["serviceName"]; found {
			port := map[string]any{}
			switch p := backend["servicePort"].(type) {
			case int64:
				port["number"] = p
			case string:
				port["name"] = p
			}
			service := map[string]any{"name": name, "port": port}
			delete(backend, "serviceName")
			delete(backend, "servicePort")
			backend["service"] = service
		}
		holder[to] = backend
	}
	convert(spec, "backend", "defaultBackend")
	rules, _ := spec["rules"].([]any)
	for _, rule := range rules {
		paths, _ := valueAt(rule, "http", "paths").([]any)
		for _, item := range paths {
			if p, ok := item.(map[string]any); ok {
				convert(p, "backend", "backend")
				if p["pathType"] == nil {
					p["pathType"] = string(networkingv1.PathTypeImplementationSpecific)
				}
			}
		}
	}
	return raw
}

// secret puts a Secret where its labels say; names never decide, except for the kubeconfig, which has no label of its own.
func (a *assembler) secret(o object) {
	labels := labelsOf(o.raw)
	c := a.c
	if labels[labelClusterCAPI] == a.id && o.ref.Namespace != a.id {
		c.Existing = append(c.Existing, unstructured.Unstructured{Object: o.raw})
		return
	}
	mine := labels[labelCluster] == a.id || (labels[labelCluster] == "" && labels[labelClusterOld] == a.id)
	a.agree(o.ref, labels, labelCluster, labelClusterOld)
	component := first(labels[labelCertificate], labels[labelComponentOld])
	switch {
	case mine && component != "":
		a.agree(o.ref, labels, labelCertificate, labelComponentOld)
		a.certificate(component, decode[corev1.Secret](a, o))
	case mine && (labels[labelRandomKey] == encryptionKeyLabel || labels[labelKeyOld] == encryptionKeyLabel):
		doc := decode[corev1.Secret](a, o)
		if c.Encryption != nil {
			a.problem(ProblemSeveralEncryption, c.Encryption.Ref.String(), "", "%s and %s both claim to hold the encryption key", c.Encryption.Ref, doc.Ref)
			c.Secrets = append(c.Secrets, doc)
			return
		}
		c.Encryption = &doc
	case o.ref.Namespace == a.id && o.ref.Name == a.id+"-kubeconfig":
		doc := decode[corev1.Secret](a, o)
		c.Kubeconfig = &doc
	default:
		c.Secrets = append(c.Secrets, decode[corev1.Secret](a, o))
	}
}

// agree reports labels of the new and the old style that contradict each other.
func (a *assembler) agree(ref Ref, labels map[string]string, now, old string) {
	if labels[now] != "" && labels[old] != "" && labels[now] != labels[old] {
		a.problem(ProblemCertificateLabels, ref.String(), "metadata.labels", "%s has %s=%s but %s=%s", ref, now, labels[now], old, labels[old])
	}
}

func (a *assembler) certificate(component string, doc Doc[corev1.Secret]) {
	if known := a.c.Certificates[component]; known != nil {
		a.problem(ProblemCertificateTwice, known.Secret.Ref.String(), "", "%s and %s both claim to be certificate %s", known.Secret.Ref, doc.Ref, component)
		a.c.Secrets = append(a.c.Secrets, doc)
		return
	}
	data := func(key string) []byte {
		if value, found := doc.Object.Data[key]; found {
			return value
		}
		if value, found := doc.Object.StringData[key]; found {
			return []byte(value)
		}
		return nil
	}
	certificate := &Certificate{Component: component, Secret: doc, CAPEM: data("ca"), CertPEM: data("crt"), KeyPEM: data("key")}
	for key, value := range map[string][]byte{"ca": certificate.CAPEM, "crt": certificate.CertPEM, "key": certificate.KeyPEM} {
		if len(bytes.TrimSpace(value)) == 0 {
			a.problem(ProblemCertificateData, doc.Ref.String(), "data."+key, "%s has no %s", doc.Ref, key)
		}
	}
	a.c.Certificates[component] = certificate
}

// config settles which KVMConfig counts.
func (a *assembler) config(configs []Doc[KVMConfig]) {
	if len(configs) == 0 {
		a.problem(ProblemNoConfig, a.id, "", "cluster %s has no KVMConfig", a.id)
		return
	}
	if len(configs) > 1 {
		a.problem(ProblemSeveralConfigs, configs[0].Ref.String(), "spec.cluster.id", "%d KVMConfigs claim the id %s: %s", len(configs), a.id, names(configs))
	}
	a.c.Config = &configs[0]
	for i := range configs {
		if configs[i].Ref.Name == a.id {
			a.c.Config = &configs[i] // the one the operator looks up by name
			break
		}
	}
	for i := range configs {
		if a.c.Config != &configs[i] {
			a.keep(configs[i].Ref, configs[i].Origin, configs[i].Raw)
		}
	}
	config := a.c.Config
	if id := config.Object.Spec.Cluster.ID; id != config.Ref.Name {
		a.problem(ProblemNameDiffers, config.Ref.String(), "spec.cluster.id", "KVMConfig is called %s but spec.cluster.id is %q", config.Ref.Name, id)
	}
}

// release finds the Release the KVMConfig's label names.
func (a *assembler) release() {
	if a.c.Config == nil {
		return
	}
	version := a.c.Config.Object.Labels[labelRelease]
	if version == "" {
		a.problem(ProblemNoReleaseLabel, a.c.Config.Ref.String(), "metadata.labels."+labelRelease, "%s names no Release", a.c.Config.Ref)
		return
	}
	name := "v" + strings.TrimPrefix(version, "v")
	for _, o := range a.objects {
		if o.ref.Kind == "Release" && group(o.ref.APIVersion) == groupRelease && o.ref.Name == name {
			doc := decode[releasev1alpha1.Release](a, o)
			a.c.Release = &doc
			return
		}
	}
	a.problem(ProblemNoRelease, "Release/"+name, "", "Release %s of cluster %s was not found", name, a.id)
}

// organization compares everything that names the owner. The label is what the platform goes by; the rest are fallbacks.
func (a *assembler) organization() {
	type claim struct{ ref, path, value string }
	var claims []claim
	claimed := func(ref Ref, path, value string) {
		if value != "" {
			claims = append(claims, claim{ref.String(), path, value})
		}
	}
	if config := a.c.Config; config != nil {
		claimed(config.Ref, "metadata.labels."+labelOrganization, config.Object.Labels[labelOrganization])
		claimed(config.Ref, "metadata.labels."+labelCustomerOld, config.Object.Labels[labelCustomerOld])
		claimed(config.Ref, "spec.cluster.customer.id", config.Object.Spec.Cluster.Customer.ID)
	}
	if config := a.c.ClusterConfig; config != nil {
		claimed(config.Ref, "metadata.labels."+labelOrganization, config.Object.Labels[labelOrganization])
		claimed(config.Ref, "spec.guest.owner", config.Object.Spec.Guest.Owner)
	}
	if namespace := a.c.Namespace; namespace != nil {
		claimed(namespace.Ref, "metadata.labels."+labelCustomerOld, namespace.Object.Labels[labelCustomerOld])
	}
	if len(claims) == 0 {
		a.problem(ProblemNoOrganization, "KVMConfig/default/"+a.id, "metadata.labels."+labelOrganization, "nothing says which organization owns cluster %s", a.id)
		return
	}
	a.c.Organization = claims[0].value
	for _, c := range claims[1:] {
		if c.value != claims[0].value {
			a.problem(ProblemOrganization, c.ref, c.path, "%s %s says %q but %s %s says %q", c.ref, c.path, c.value, claims[0].ref, claims[0].path, claims[0].value)
		}
	}
}

// nodes pairs ids with sizing by position, and gathers what belongs to each.
func (a *assembler) nodes() {
	config := a.c.Config
	if config == nil {
		return
	}
	spec := config.Object.Spec
	switch len(spec.Cluster.Masters) {
	case 0:
		a.problem(ProblemNoMaster, config.Ref.String(), "spec.cluster.masters", "cluster %s has no master", a.id)
	case 1:
	default:
		a.problem(ProblemSeveralMasters, config.Ref.String(), "spec.cluster.masters", "cluster %s has %d masters", a.id, len(spec.Cluster.Masters))
	}
	seen := map[string]bool{}
	list := func(role Role, ids []providerv1alpha1.ClusterNode, sizes []providerv1alpha1.KVMConfigSpecKVMNode) {
		paired := len(ids) == len(sizes)
		path := string(role) + "s"
		if !paired {
			a.problem(ProblemUnpairedSizing, config.Ref.String(), "spec.kvm."+path, "spec.cluster.%s has %d entries but spec.kvm.%s has %d", path, len(ids), path, len(sizes))
		}
		for i, id := range ids {
			if id.ID == "" || seen[id.ID] {
				a.problem(ProblemNodeID, config.Ref.String(), fmt.Sprintf("spec.cluster.%s[%d].id", path, i), "%s %d has the id %q, which is empty or taken", role, i, id.ID)
			}
			seen[id.ID] = true
			node := Node{Role: role, ID: id.ID, Position: i, Index: config.Object.Status.KVM.NodeIndexes[id.ID]}
			if paired {
				node.Sizing = &sizes[i]
			}
			a.c.Nodes = append(a.c.Nodes, node)
		}
	}
	list(Master, spec.Cluster.Masters, spec.KVM.Masters)
	list(Worker, spec.Cluster.Workers, spec.KVM.Workers)
	for i := range a.c.Nodes {
		a.gather(&a.c.Nodes[i])
	}
	if !a.brief {
		a.ignitions()
		a.strangers(seen)
	}
}

// gather finds a node's objects.
func (a *assembler) gather(n *Node) {
	c, key := a.c, string(n.Role)+"-"+n.ID
	belongs := func(labels map[string]string) bool {
		return labels[labelNodeID] == n.ID && labels[labelApp] == string(n.Role)
	}
	n.Pod = a.pod(n, belongs)
	if n.Index == 0 {
		a.problem(ProblemNodeIndex, c.Config.Ref.String(), "status.kvm.nodeIndexes."+n.ID, "%s %s has no index", n.Role, n.ID)
	}
	if n.Pod == nil {
		a.problem(ProblemNodePod, "Pod/"+a.id+"/"+key, "", "%s %s of cluster %s has no VM pod", n.Role, n.ID, a.id)
	}
	if a.brief {
		return
	}
	n.Deployment = find(c.Deployments, func(d *Doc[appsv1.Deployment]) bool { return d.Ref.Namespace == a.id && d.Ref.Name == key })
	n.ReplicaSet = a.replicaSet(n, belongs)
	n.ConfigMap = find(c.ConfigMaps, func(d *Doc[corev1.ConfigMap]) bool {
		return d.Ref.Namespace == a.id && d.Ref.Name == string(n.Role)+"-"+a.id+"-"+n.ID
	})
	if n.Deployment == nil {
		a.problem(ProblemNodeDeployment, "Deployment/"+a.id+"/"+key, "", "%s %s of cluster %s has no Deployment", n.Role, n.ID, a.id)
	}
	if n.ReplicaSet == nil {
		a.problem(ProblemNodeReplicaSet, "ReplicaSet/"+a.id+"/"+key, "", "%s %s of cluster %s has no ReplicaSet", n.Role, n.ID, a.id)
	}
	if n.ConfigMap == nil {
		a.problem(ProblemNodeConfigMap, "ConfigMap/"+a.id+"/"+string(n.Role)+"-"+a.id+"-"+n.ID, "", "%s %s of cluster %s has no ConfigMap", n.Role, n.ID, a.id)
	}
}

func find[T any](docs []Doc[T], match func(*Doc[T]) bool) *Doc[T] {
	for i := range docs {
		if match(&docs[i]) {
			return &docs[i]
		}
	}
	return nil
}

// pod chooses among the pods of a node the one whose VM runs: not being deleted, running, the oldest.
func (a *assembler) pod(n *Node, belongs func(map[string]string) bool) *Doc[corev1.Pod] {
	var pods []*Doc[corev1.Pod]
	for i := range a.c.Pods {
		if pod := &a.c.Pods[i]; pod.Ref.Namespace == a.id && belongs(pod.Object.Labels) {
			pods = append(pods, pod)
		}
	}
	if len(pods) == 0 {
		return nil
	}
	slices.SortStableFunc(pods, func(x, y *Doc[corev1.Pod]) int {
		rank := func(p *Doc[corev1.Pod]) int {
			switch {
			case p.Object.DeletionTimestamp == nil && p.Object.Status.Phase == corev1.PodRunning:
				return 0
			case p.Object.Status.Phase == corev1.PodRunning:
				return 1
			}
			return 2
		}
		return cmp.Or(cmp.Compare(rank(x), rank(y)), x.Object.CreationTimestamp.Compare(y.Object.CreationTimestamp.Time))
	})
	if len(pods) > 1 {
		a.problem(ProblemNodeSeveralPods, pods[0].Ref.String(), "", "%s %s has %d pods; %s was used", n.Role, n.ID, len(pods), pods[0].Ref.Name)
	}
	return pods[0]
}

// replicaSet is the one that owns the pod, else the newest of the node that wants a pod.
func (a *assembler) replicaSet(n *Node, belongs func(map[string]string) bool) *Doc[appsv1.ReplicaSet] {
	if rs := a.owner(n.Pod); rs != nil {
		return rs
	}
	var best *Doc[appsv1.ReplicaSet]
	for i := range a.c.ReplicaSets {
		rs := &a.c.ReplicaSets[i]
		if rs.Ref.Namespace != a.id || !belongs(rs.Object.Labels) || (rs.Object.Spec.Replicas != nil && *rs.Object.Spec.Replicas == 0) {
			continue
		}
		if best == nil || best.Object.CreationTimestamp.Before(&rs.Object.CreationTimestamp) {
			best = rs
		}
	}
	return best
}

// owner is the ReplicaSet that a pod says it belongs to.
func (a *assembler) owner(pod *Doc[corev1.Pod]) *Doc[appsv1.ReplicaSet] {
	if pod == nil {
		return nil
	}
	for _, owner := range pod.Object.OwnerReferences {
		if owner.Kind != "ReplicaSet" {
			continue
		}
		if rs := find(a.c.ReplicaSets, func(d *Doc[appsv1.ReplicaSet]) bool {
			return d.Ref.Namespace == a.id && d.Ref.Name == owner.Name && (owner.UID == "" || d.Ref.UID == "" || d.Ref.UID == owner.UID)
		}); rs != nil {
			return rs
		}
	}
	return nil
}

// ignitions decodes the boot data of all nodes in parallel; it is the most expensive part of a picture.
func (a *assembler) ignitions() {
	found := make([][]finding.Finding, len(a.c.Nodes))
	parallel(len(a.c.Nodes), func(i int) {
		n := &a.c.Nodes[i]
		if n.ConfigMap == nil {
			return
		}
		report := func(id, path, message string) {
			found[i] = append(found[i], problem(id, n.ConfigMap.Ref.String(), path, "boot data of %s %s: %s", n.Role, n.ID, message))
		}
		ignition, err := decodeUserData(n.ConfigMap.Object.Data["user_data"], a.opts.MaxIgnitionBytes, a.documents, report)
		switch {
		case errors.Is(err, errTooMuch):
			report(ProblemIgnitionTooLarge, "data.user_data", fmt.Sprintf("decodes to more than the limit of %d MiB", a.opts.MaxIgnitionBytes/mebibyte))
		case err != nil:
			report(ProblemIgnitionMalformed, "data.user_data", err.Error())
		default:
			n.Ignition = ignition
		}
	})
	for _, problems := range found {
		a.c.Problems = append(a.c.Problems, problems...)
	}
}

// strangers reports VMs of the namespace that the KVMConfig does not name.
func (a *assembler) strangers(known map[string]bool) {
	for i := range a.c.Deployments {
		d := &a.c.Deployments[i]
		role := d.Object.Labels[labelApp]
		if node := d.Object.Labels[labelNodeID]; node != "" && !known[node] && (role == string(Master) || role == string(Worker)) {
			a.problem(ProblemNodeUnknown, d.Ref.String(), "", "%s belongs to node %s, which the KVMConfig does not name", d.Ref, node)
		}
	}
}

// workloadCluster adds the workload cluster's own view.
func (a *assembler) workloadCluster() {
	if !a.insideKnown {
		return
	}
	inside := &Inside{}
	a.c.Inside = inside
	for _, o := range a.inside {
		if o.ref.Kind == "Node" && o.ref.APIVersion == "v1" {
			inside.Nodes = append(inside.Nodes, decode[corev1.Node](a, o))
			continue
		}
		inside.Objects = append(inside.Objects, other(o))
	}
	slices.SortFunc(inside.Nodes, func(x, y Doc[corev1.Node]) int { return byRef(x.Ref, y.Ref) })
	slices.SortFunc(inside.Objects, func(x, y Doc[unstructured.Unstructured]) int { return byRef(x.Ref, y.Ref) })
	joinNodes(a.c)
	if a.c.Config == nil {
		return
	}
	joined := map[string]bool{}
	for i := range a.c.Nodes {
		n := &a.c.Nodes[i]
		switch {
		case n.Node != nil:
			joined[n.Node.Ref.Name] = true
		case n.Pod != nil:
			a.problem(ProblemNodeInside, n.Pod.Ref.String(), "", "%s %s has no Node called %s in the workload cluster", n.Role, n.ID, n.Pod.Ref.Name)
		}
	}
	for i := range inside.Nodes {
		if node := &inside.Nodes[i]; !joined[node.Ref.Name] {
			a.problem(ProblemNodeInsideUnknown, node.Ref.String(), "", "Node %s of the workload cluster has no VM pod", node.Ref.Name)
		}
	}
}

// joinNodes finds each machine's Node: it is called like the VM pod.
func joinNodes(c *Cluster) {
	for i := range c.Nodes {
		if pod := c.Nodes[i].Pod; pod != nil {
			c.Nodes[i].Node = find(c.Inside.Nodes, func(d *Doc[corev1.Node]) bool { return d.Ref.Name == pod.Ref.Name })
		}
	}
}

// completeness reports what every cluster has and this one lacks, and reads the service's records.
func (a *assembler) completeness() {
	c := a.c
	c.Service = a.service
	if c.ClusterConfig == nil {
		a.problem(ProblemNoClusterConfig, "KVMClusterConfig/default/"+a.id+"-kvm-cluster-config", "", "cluster %s has no KVMClusterConfig", a.id)
	}
	if c.Namespace == nil {
		a.problem(ProblemNoNamespace, "Namespace/"+a.id, "", "namespace %s was not found", a.id)
	}
	if a.brief {
		return
	}
	if c.Flannel == nil {
		a.problem(ProblemNoFlannelConfig, "FlannelConfig/default/"+a.id, "", "cluster %s has no FlannelConfig", a.id)
	}
	if len(c.Certificates) == 0 {
		a.problem(ProblemNoCertificates, a.id, "", "no certificate Secret of cluster %s was found", a.id)
	}
	if c.Encryption == nil {
		a.problem(ProblemNoEncryption, "Secret/default/"+a.id+"-encryption", "", "no Secret with the encryption key of cluster %s was found", a.id)
	}
	if c.Kubeconfig == nil {
		a.problem(ProblemNoKubeconfig, "Secret/"+a.id+"/"+a.id+"-kubeconfig", "", "cluster %s has no kubeconfig Secret", a.id)
	}
}

// serviceRecords reads what cluster-service recorded, by cluster.
func serviceRecords(objects []object, opts StorageConfigOptions) map[string]*ServiceRecord {
	records := map[string]*ServiceRecord{}
	storage := storageConfig(objects, opts)
	if storage == nil {
		return records
	}
	for key, value := range storageEntries(storage) {
		id, ok := opts.clusterOfKey(key)
		if !ok {
			continue
		}
		if records[id] == nil {
			records[id] = &ServiceRecord{Source: storage.ref, Entries: map[string]string{}}
		}
		records[id].Entries[key] = value
	}
	return records
}

func storageConfig(objects []object, opts StorageConfigOptions) *object {
	for i := range objects {
		o := &objects[i]
		if o.ref.Kind == "StorageConfig" && group(o.ref.APIVersion) == groupCore && o.ref.Namespace == opts.Namespace && o.ref.Name == opts.Name {
			return o
		}
	}
	return nil
}

// storageEntries returns the entries whose values are text, as the type demands.
func storageEntries(o *object) map[string]string {
	data, _ := valueAt(o.raw, "spec", "storage", "data").(map[string]any)
	entries := make(map[string]string, len(data))
	for key, value := range data {
		if text, ok := value.(string); ok {
			entries[key] = text
		}
	}
	return entries
}

// assembleFleet builds what belongs to no single cluster.
func assembleFleet(objects []object, ids []string, opts Options) *Fleet {
	f := &Fleet{}
	a := &assembler{c: &Cluster{}}
	for _, o := range objects {
		switch o.ref.Kind {
		case "Node":
			f.Hosts = append(f.Hosts, host(decode[corev1.Node](a, o)))
		case kindDefinition:
			f.CRDs = append(f.CRDs, crd(o))
		case "PersistentVolume":
			if v := decode[corev1.PersistentVolume](a, o).Object; v.Status.Phase == corev1.VolumeAvailable || v.Status.Phase == corev1.VolumeReleased {
				f.Volumes = append(f.Volumes, unclaimed(&v))
			}
		case "StorageClass":
			if f.Provisioners == nil {
				f.Provisioners = map[string]string{}
			}
			f.Provisioners[o.ref.Name] = textAt(o.raw, "provisioner")
		}
	}
	slices.SortFunc(f.Volumes, func(x, y Volume) int { return cmp.Compare(x.Name, y.Name) })
	slices.SortFunc(f.Hosts, func(x, y Host) int { return cmp.Compare(x.Name, y.Name) })
	slices.SortFunc(f.CRDs, func(x, y CRD) int { return cmp.Compare(x.Name, y.Name) })
	f.Problems = a.c.Problems
	where := opts.StorageConfig.Namespace + "/" + opts.StorageConfig.Name
	storage := storageConfig(objects, opts.StorageConfig)
	if storage == nil {
		f.Problems = append(f.Problems, problem(ProblemNoStorageConfig, "StorageConfig/"+where, "", "StorageConfig %s was not found", where))
		return f
	}
	data := valueAt(storage.raw, "spec", "storage", "data")
	if _, ok := data.(map[string]any); !ok && data != nil {
		f.Problems = append(f.Problems, problem(ProblemStorageConfig, storage.ref.String(), "spec.storage.data", "expected an object, found %s", describe(data)))
	}
	records := map[string]bool{}
	for key := range storageEntries(storage) {
		if id, ok := opts.StorageConfig.clusterOfKey(key); ok && !slices.Contains(ids, id) {
			records[id] = true
		}
	}
	f.Records = slices.Sorted(maps.Keys(records))
	return f
}

// unclaimed is a volume without a claim that exists.
func unclaimed(v *corev1.PersistentVolume) Volume {
	out := Volume{Name: v.Name, Class: v.Spec.StorageClassName, Bytes: v.Spec.Capacity.Storage().Value(), Modes: v.Spec.AccessModes}
	if claim := v.Spec.ClaimRef; claim != nil && v.Status.Phase == corev1.VolumeReleased {
		out.Released = claim.Namespace + "/" + claim.Name
	}
	return out
}

func host(doc Doc[corev1.Node]) Host {
	node := doc.Object
	h := Host{
		Name: doc.Ref.Name, Labels: node.Labels, Schedulable: !node.Spec.Unschedulable,
		CPU:    node.Status.Allocatable.Cpu().MilliValue() / 1000, // whole cores: a VM cannot use a part of one
		Memory: node.Status.Allocatable.Memory().Value(),
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			h.Ready = condition.Status == corev1.ConditionTrue
		}
	}
	return h
}

// crd reads both versions of the kind; v1beta1 may name a single version outside the list.
func crd(o object) CRD {
	c := CRD{Name: o.ref.Name, Labels: labelsOf(o.raw)}
	versions, _ := valueAt(o.raw, "spec", "versions").([]any)
	for _, version := range versions {
		if served, _ := valueAt(version, "served").(bool); served {
			c.Versions = append(c.Versions, textAt(version, "name"))
		}
	}
	if single := textAt(o.raw, "spec", "version"); len(versions) == 0 && single != "" {
		c.Versions = []string{single}
	}
	slices.Sort(c.Versions)
	return c
}

// deepCopy copies decoded JSON.
func deepCopy(raw map[string]any) map[string]any {
	return (&unstructured.Unstructured{Object: raw}).DeepCopy().Object
}
