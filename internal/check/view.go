package check

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pki"
)

// Names the legacy platform and Cluster API use.
const (
	labelCluster         = "giantswarm.io/cluster"
	labelOrganization    = "giantswarm.io/organization"
	labelRelease         = "release.giantswarm.io/version"
	labelOperator        = "kvm-operator.giantswarm.io/version"
	labelCertOperator    = "cert-operator.giantswarm.io/version"
	labelNode            = "node"
	labelProvider        = "cluster.x-k8s.io/provider"
	labelClusterName     = "cluster.x-k8s.io/cluster-name"
	labelControlPlane    = "cluster.x-k8s.io/control-plane"
	labelContract        = "cluster.x-k8s.io/v1beta2"
	labelPodSecurity     = "pod-security.kubernetes.io/enforce"
	annotationIP         = "endpoint.kvm.giantswarm.io/ip"
	annotationDrained    = "endpoint.kvm.giantswarm.io/drained"
	annotationComponent  = "kvm-operator.giantswarm.io/component-version-"
	annotationRelease    = "giantswarm.io/release-version"
	annotationBundle     = "giantswarm.io/version-bundle-version"
	annotationTerminate  = "node.giantswarm.io/terminate-unhealthy"
	annotationPassthru   = "nginx.ingress.kubernetes.io/ssl-passthrough" //nolint:gosec // G101: "pass" is no password here
	finalizerDrainer     = "operatorkit.giantswarm.io/kvm-operator-drainer"
	conditionNodeReady   = "kvm-operator.giantswarm.io/workload-cluster-node-ready"
	containerVM          = "k8s-kvm"
	fieldOwner           = "migrate"
	legacyNamespace      = "default"
	hostnameLabel        = "kubernetes.io/hostname"
	fileEncryption       = "/etc/kubernetes/encryption/k8s-encryption-config.yaml"
	fileServiceAccount   = "/etc/kubernetes/ssl/service-account-key.pem"
	fileAPIServer        = "/etc/kubernetes/manifests/k8s-api-server.yaml"
	fileAPICertificate   = "/etc/kubernetes/ssl/apiserver-crt.pem"
	fileEtcdCertificate  = "/etc/kubernetes/ssl/etcd/server-crt.pem"
	fileWorker           = "/etc/kubernetes/ssl/worker-crt.pem"
	fileInitiator        = "/etc/iscsi/initiatorname.iscsi"
	fileCalico           = "/srv/calico-all.yaml"
	initiatorPrefix      = "InitiatorName=iqn.2016-04.com.coreos.iscsi:giantswarm-"
	storagePersistent    = "persistentVolume"
	storageHostPath      = "hostPath"
	endpointsMaster      = "master"
	etcdVolume           = "etcd-data"
	hostVolumeClaimStart = "local-pvc-worker-"
)

// view is the facts with what several checks need computed once. Checks share it and never change it.
type view struct {
	Facts
	cluster *legacy.Cluster
	// config is the KVMConfig; checks that use it need Config.
	config *legacy.KVMConfig
	// master is the first master with a boot configuration; checks that use it need Boot.
	boot *legacy.Ignition
	// flags are the API server's, by name without dashes.
	flags map[string]string
	// leafs are the certificates that parse, by name in order; unreadable says of the others why.
	leafs      []pki.Leaf
	unreadable []string
	writers    []writer
	hosts      map[string]legacy.Host
	// podsOf are the VM pods by node id.
	podsOf map[string][]*corev1.Pod
}

// writer is one entry of an object's managed fields.
type writer struct {
	object  string
	manager string
	at      time.Time
}

func newView(facts Facts) *view {
	seen := &view{Facts: facts, cluster: facts.Cluster, hosts: map[string]legacy.Host{}, podsOf: map[string][]*corev1.Pod{}}
	if seen.cluster.Config != nil {
		seen.config = &seen.cluster.Config.Object
	}
	if seen.Namespace == "" && seen.cluster.Organization != "" {
		seen.Namespace = TargetNamespace(seen.cluster.Organization)
	}
	for _, node := range seen.cluster.Masters() {
		if node.Ignition != nil {
			seen.boot = node.Ignition
			break
		}
	}
	seen.flags = flags(seen.boot.File(fileAPIServer))
	for n := range seen.cluster.Pods {
		pod := &seen.cluster.Pods[n].Object
		if id := pod.Labels[labelNode]; id != "" {
			seen.podsOf[id] = append(seen.podsOf[id], pod)
		}
	}
	if seen.Fleet != nil {
		for _, host := range seen.Fleet.Hosts {
			seen.hosts[host.Name] = host
		}
	}
	if !seen.cluster.Redacted {
		seen.parseCertificates()
	}
	seen.writers = writersOf(seen.cluster)
	return seen
}

// parseCertificates is the only place where certificates are parsed: with keys it is the slowest thing a run does.
func (v *view) parseCertificates() {
	for component, certificate := range v.cluster.Certificates {
		if certificate == nil || len(certificate.CertPEM) == 0 {
			continue
		}
		leaf, err := pki.ParseLeaf(component, certificate.CertPEM, certificate.KeyPEM, certificate.CAPEM)
		if err != nil {
			v.unreadable = append(v.unreadable, fmt.Sprintf("%s: %v", certificate.Secret.Ref, err))
			continue
		}
		v.leafs = append(v.leafs, leaf)
	}
	pki.SortLeafs(v.leafs)
	slices.Sort(v.unreadable)
}

// lacks says why a kind of facts is missing, empty when it is there; failed tells that reading it went wrong.
func (v *view) lacks(need Fact) (reason string, failed bool) {
	if problem := v.Unread[need]; problem != "" {
		return fmt.Sprintf("%s could not be read: %s", need, problem), true
	}
	missing, reason := v.missing(need)
	if !missing {
		return "", false
	}
	// Every master has a boot configuration, so this is no lack of access: only a snapshot may leave it out.
	return reason, need == Boot && !v.cluster.Redacted
}

// lack is whether a kind of facts is missing, and how to say so.
type lack struct {
	missing bool
	reason  string
}

// missing tells whether nobody looked at a kind of facts or it does not exist, and how to say so.
func (v *view) missing(need Fact) (missing bool, reason string) {
	found, known := map[Fact]lack{
		Config:      {v.config == nil, "there is no KVMConfig"},
		Values:      {v.cluster.Redacted, "the snapshot holds no secret values"},
		Boot:        {v.boot == nil, "no boot configuration of a master is readable"},
		VMs:         {!slices.ContainsFunc(v.cluster.Nodes, func(node legacy.Node) bool { return node.Pod != nil }), "no VM pod is known"},
		Nodes:       {v.cluster.Inside == nil || len(v.cluster.Inside.Nodes) == 0, "the workload cluster was not looked into"},
		Hosts:       {len(v.hosts) == 0, "the management cluster's hosts are not known"},
		Storage:     {v.Fleet == nil || v.Fleet.Provisioners == nil, "the management cluster's storage classes are not known"},
		History:     {len(v.writers) == 0, "the objects carry no managed fields (a snapshot may leave them out)"},
		Authority:   {v.CA == nil, "no usable CA private key was given"},
		Abilities:   {v.Capabilities == nil, "offline: the management cluster was not asked"},
		Occupancy:   {v.Target == nil, "offline: the target namespace was not looked at"},
		Draining:    {v.DrainRules == nil, "offline: the target namespace was not looked at"},
		Others:      {v.Neighbours == nil, "the other legacy clusters were not looked at"},
		Members:     {v.Etcd == nil, "etcd was not asked, or does not answer (CHK-ETCD-001)"},
		Running:     {v.Workloads == nil, "the workload cluster's pods were not looked at"},
		Requested:   {v.Requests == nil, "the workload cluster's API server was not asked"},
		Named:       {v.Names == nil, "the new nodes' name servers were not asked"},
		Translation: {!v.Translated, "the cluster was not translated"},
		Successors:  {len(v.Replacements) == 0, "no node to come is known: the cluster was not translated, or could not be"},
	}[need]
	if !known {
		return true, "unknown kind of facts " + string(need)
	}
	return found.missing, found.reason
}

// component returns the version of a release component, empty when unknown.
func (v *view) component(name string) string {
	if v.cluster.Release == nil {
		return ""
	}
	for _, component := range v.cluster.Release.Object.Spec.Components {
		if component.Name == name {
			return component.Version
		}
	}
	return ""
}

// running returns the version of a component the master's VM was made with, else the release's.
func (v *view) running(component string) string {
	for _, node := range v.cluster.Masters() {
		if node.Pod != nil {
			if have := node.Pod.Object.Annotations[annotationComponent+component]; have != "" {
				return have
			}
		}
	}
	return v.component(component)
}

// leaf returns the parsed certificate of a component, or nil.
func (v *view) leaf(component string) *pki.Leaf {
	for n := range v.leafs {
		if v.leafs[n].Name == component {
			return &v.leafs[n]
		}
	}
	return nil
}

// release is the cluster's release version without leading v, from the KVMConfig's label.
func (v *view) release() string {
	if v.config == nil {
		return ""
	}
	return strings.TrimPrefix(v.config.Labels[labelRelease], "v")
}

// endpoints returns the addresses of an Endpoints object, ready and not, sorted; ok tells whether the object exists.
func (v *view) endpoints(name string) (ready, notReady []string, ok bool) {
	for _, doc := range v.cluster.Endpoints {
		if doc.Object.Name != name {
			continue
		}
		ok = true
		for _, subset := range doc.Object.Subsets {
			for _, address := range subset.Addresses {
				ready = append(ready, address.IP)
			}
			for _, address := range subset.NotReadyAddresses {
				notReady = append(notReady, address.IP)
			}
		}
	}
	return distinct(ready), distinct(notReady), ok
}

// ip is the address of a node's VM: the pod's own is the host's.
func ip(node legacy.Node) string {
	if node.Pod == nil {
		return ""
	}
	return node.Pod.Object.Annotations[annotationIP]
}

// name identifies a node to a reader: its role and id, as in the Deployment's name.
func name(node legacy.Node) string { return string(node.Role) + "-" + node.ID }

// flags reads the command line flags of the first container of a static pod manifest, without decoding it: the lines are
// `- --name=value`, and a manifest that is no YAML any more still shows them.
func flags(file *legacy.IgnitionFile) map[string]string {
	found := map[string]string{}
	if file == nil {
		return found
	}
	for line := range strings.Lines(string(file.Content)) {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "- --")
		if !ok {
			continue
		}
		key, value, _ := strings.Cut(strings.Trim(text, `"'`), "=")
		if _, given := found[key]; !given {
			found[key] = strings.Trim(value, `"'`)
		}
	}
	return found
}

// minor returns a version's minor number for major 1.
func minor(text string) (int, bool) {
	parsed, err := version.ParseGeneric(text)
	if err != nil || parsed.Major() != 1 {
		return 0, false
	}
	return int(parsed.Minor()), true
}

// older tells whether a version is below a limit; unreadable versions are not.
func older(text, limit string) bool {
	parsed, err := version.ParseGeneric(text)
	return err == nil && parsed.LessThan(version.MustParseGeneric(limit))
}

// firstAddress returns the first usable address of a network: the service address of `kubernetes`.
func firstAddress(cidr string) string {
	address, network, err := net.ParseCIDR(cidr)
	if err != nil {
		return ""
	}
	first := slices.Clone(network.IP)
	if v4 := address.To4(); v4 != nil {
		first = slices.Clone(network.IP.To4())
	}
	first[len(first)-1]++
	return first.String()
}

// writersOf collects the managed fields of every object of the picture that a migration touches.
func writersOf(cluster *legacy.Cluster) []writer {
	var found []writer
	for _, object := range metadata(cluster) {
		for _, entry := range object.meta.GetManagedFields() {
			one := writer{object: object.ref.String(), manager: entry.Manager}
			if entry.Time != nil {
				one.at = entry.Time.Time
			}
			found = append(found, one)
		}
	}
	slices.SortFunc(found, func(a, b writer) int {
		return cmp.Or(cmp.Compare(a.object, b.object), cmp.Compare(a.manager, b.manager), a.at.Compare(b.at))
	})
	return found
}

// described is one object's identity and metadata.
type described struct {
	ref  legacy.Ref
	meta metav1.Object
}

// metadata lists the objects of the picture the operators write and a migration relies on.
func metadata(cluster *legacy.Cluster) []described {
	all := slices.Concat(
		oneOf(cluster.Config), oneOf(cluster.ClusterConfig), oneOf(cluster.Flannel), oneOf(cluster.Encryption),
		oneOf(cluster.Namespace), everyOf(cluster.CertConfigs), everyOf(cluster.Deployments), everyOf(cluster.Pods),
		everyOf(cluster.ConfigMaps), everyOf(cluster.Services), everyOf(cluster.Endpoints), everyOf(cluster.Ingresses),
	)
	for _, certificate := range cluster.Certificates {
		all = append(all, oneOf(&certificate.Secret)...)
	}
	slices.SortStableFunc(all, func(a, b described) int { return cmp.Compare(a.ref.String(), b.ref.String()) })
	return all
}

// typed is what every Kubernetes type is: metadata behind a pointer.
type typed[T any] interface {
	*T
	metav1.Object
}

// everyOf describes the objects of one type.
func everyOf[T any, P typed[T]](docs []legacy.Doc[T]) []described {
	all := make([]described, 0, len(docs))
	for n := range docs {
		all = append(all, described{docs[n].Ref, P(&docs[n].Object)})
	}
	return all
}

// oneOf describes an object of which a cluster has one or none.
func oneOf[T any, P typed[T]](doc *legacy.Doc[T]) []described {
	if doc == nil {
		return nil
	}
	return []described{{doc.Ref, P(&doc.Object)}}
}

// ownedBy tells whether the controller among the owners is the object of that name, and of that UID where both are known.
func ownedBy(owners []metav1.OwnerReference, name string, uid types.UID) bool {
	return slices.ContainsFunc(owners, func(owner metav1.OwnerReference) bool {
		return owner.Controller != nil && *owner.Controller && owner.Name == name && (uid == "" || owner.UID == uid)
	})
}
