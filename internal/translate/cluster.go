package translate

import (
	"encoding/base64"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

const (
	infraGroup     = infrav1.GroupName
	infraVersion   = infrav1.GroupName + "/" + infrav1.Version
	bootstrapGroup = "bootstrap.cluster.x-k8s.io"
	coreVersion    = "cluster.x-k8s.io/v1beta2"
)

// externalPort is where clients reach the API: the management cluster's ingress tells clusters apart by SNI on this port,
// whatever port the API server listens on inside the VM (legacy-system.md 4.4).
const externalPort = 443

// namespace makes the namespace of the Cluster API objects. Neither `default` nor the cluster's own is usable: both hold legacy
// Secrets with names that Cluster API expects for its own (design decision 4).
func (t *translation) namespace() {
	o := t.newObject("v1", "Namespace", "", t.result.Namespace, PhaseTranslate)
	o.set("metadata.labels[giantswarm.io/organization]", t.org, t.organization())
	o.Note = "shared by all clusters of the organisation; an undo leaves it when others use it"
	t.result.Objects = append(t.result.Objects, o)
}

func (t *translation) organization() origin {
	return t.from("identity",
		t.config("metadata.labels[giantswarm.io/organization]"), t.config("metadata.labels.customer"),
		t.config("spec.cluster.customer.id"), t.get(sourceCluster, "spec.guest.owner"),
		t.get(sourceCluster, "metadata.labels[giantswarm.io/organization]"))
}

// identityOf is the origin of the cluster's id.
func (t *translation) identityOf() origin {
	if t.idFrom.Origin != nil {
		return t.idFrom
	}
	t.idFrom = t.from("identity", t.config("spec.cluster.id"), t.config("metadata.labels[giantswarm.io/cluster]"), t.config("metadata.labels.clusterID"),
		t.get(sourceCluster, "spec.guest.id"), t.get(sourceCluster, "metadata.labels[giantswarm.io/cluster]"))
	return t.idFrom
}

// infrastructureCluster makes the KVMCluster. It keeps the Endpoints that the legacy Services use; its own Ingress and NodePort
// Service come with the finalize phase, because the legacy ones hold the names and ports until then.
func (t *translation) infrastructureCluster() {
	o := t.newObject(infraVersion, "KVMCluster", t.result.Namespace, t.id, PhaseTranslate)
	o.set("metadata.labels["+clusterv1.ClusterNameLabel+"]", t.id, t.identityOf())
	o.set("spec.controlPlaneEndpoint.host", t.domain, t.from("endpoint", t.config("spec.cluster.kubernetes.api.domain"), t.get(sourceCluster, "spec.guest.dnsZone")))
	o.set("spec.controlPlaneEndpoint.port", int64(externalPort), t.from("endpoint"))
	for _, role := range []legacy.Role{legacy.Master, legacy.Worker} {
		t.endpoints(o, role)
	}
	t.add(o)
}

// endpoints lists the Endpoints object of a role with the ports of its Service, or of the KVMConfig when the Service is not there.
func (t *translation) endpoints(o *Object, role legacy.Role) {
	machines := infrav1.WorkerMachines
	if role == legacy.Master {
		machines = infrav1.ControlPlaneMachines
	}
	var ports []any
	for i := range t.cluster.Services {
		if service := &t.cluster.Services[i].Object; service.Name == string(role) {
			for _, port := range service.Spec.Ports {
				number := int64(port.TargetPort.IntValue())
				if number == 0 {
					number = int64(port.Port)
				}
				ports = append(ports, endpointsPort(role, port.Name, number))
			}
		}
	}
	if len(ports) == 0 && role == legacy.Master {
		port, ok := t.port(t.config("spec.cluster.kubernetes.api.securePort"))
		if !ok {
			return
		}
		ports = []any{endpointsPort(role, "etcd", etcdPort), endpointsPort(role, "api", port)}
	}
	if len(ports) == 0 {
		for _, port := range t.workerPorts() {
			ports = append(ports, map[string]any{"name": port.name, "port": port.port})
		}
	}
	if len(ports) == 0 {
		return
	}
	leaves := []*leaf{t.config("spec.cluster.kubernetes.api.securePort")}
	if role == legacy.Worker {
		leaves = nil
		for i := 0; t.configAt("spec.kvm.portMappings", i, "targetPort") != nil; i++ {
			leaves = append(leaves, t.configAt("spec.kvm.portMappings", i, "targetPort"), t.configAt("spec.kvm.portMappings", i, "name"))
		}
	}
	rule := t.from("worker-ports", leaves...)
	if role == legacy.Master {
		rule = t.from("endpoint", leaves...)
	}
	o.add("spec.endpoints", map[string]any{"namespace": t.id, "name": string(role), "role": string(machines), "ports": ports}, rule)
}

// etcdPort is where etcd listens for clients.
const etcdPort = 2379

// endpointsPort is a port of a legacy Service. That of etcd leads to the legacy master alone: the etcd of a new machine has no certificate for the
// name by which clients reach this one.
func endpointsPort(role legacy.Role, name string, number int64) map[string]any {
	port := map[string]any{"name": name, "port": number}
	if role == legacy.Master && number == etcdPort {
		port["adoptedOnly"] = true
	}
	return port
}

// finalInfrastructure is what the KVMCluster gets once the legacy Services and Ingresses are gone: its own Ingress for the API and
// its own Service for the workers' ports, with the node ports that clients outside know.
func (t *translation) finalInfrastructure() {
	o := t.newObject(infraVersion, "KVMCluster", t.result.Namespace, t.id, PhaseFinalize)
	o.set("spec.ingress.hosts", []any{t.domain}, t.from("endpoint", t.config("spec.cluster.kubernetes.api.domain")))
	o.set("spec.ingress.annotations[nginx.ingress.kubernetes.io/ssl-passthrough]", "true", t.from("endpoint"))
	t.ingressClass(o)
	for _, port := range t.workerPorts() {
		item := map[string]any{"name": port.name, "port": port.port}
		if port.nodePort != 0 {
			item["nodePort"] = port.nodePort
		}
		o.add("spec.workerPorts", item, t.from("worker-ports", port.leaves...))
	}
	o.Note = "the provider takes over name and ports in the same step in which the legacy Ingress and Service go"
	t.result.Objects = append(t.result.Objects, o)
}

// ingressClass has the new Ingress served by whoever serves the legacy one, where that one says who it is: by the field, or by the annotation of before.
func (t *translation) ingressClass(o *Object) {
	const before = "kubernetes.io/ingress.class"
	for i := range t.cluster.Ingresses {
		legacy := &t.cluster.Ingresses[i].Object
		if legacy.Name != "api" {
			continue
		}
		if name := legacy.Spec.IngressClassName; name != nil {
			o.set("spec.ingress.className", *name, t.from("endpoint"))
		} else if name := legacy.Annotations[before]; name != "" { // An API server refuses to make an Ingress that has both.
			o.set("spec.ingress.annotations["+before+"]", name, t.from("endpoint"))
		}
	}
}

type workerPort struct {
	name           string
	port, nodePort int64
	leaves         []*leaf
}

// workerPorts are the ports published for the workers: the KVMConfig's mappings, or the operator's defaults with the node ports
// that the API server allocated (legacy-system.md 2.1, pitfall).
func (t *translation) workerPorts() []workerPort {
	var out []workerPort
	for i := 0; ; i++ {
		name, target, node := t.configAt("spec.kvm.portMappings", i, "name"), t.configAt("spec.kvm.portMappings", i, "targetPort"), t.configAt("spec.kvm.portMappings", i, "nodePort")
		if name == nil && target == nil && node == nil {
			break
		}
		if mapping, ok := t.portMapping(name, target, node); ok {
			out = append(out, mapping)
		}
	}
	if len(out) > 0 {
		return out
	}
	return t.defaultPorts()
}

// portMapping reads one mapping; a part that cannot be used takes the others with it.
func (t *translation) portMapping(name, target, node *leaf) (workerPort, bool) {
	port, ok := t.port(target)
	nodePort, okNode := t.port(node)
	if name != nil && len(validation.IsDNS1123Label(name.text())) > 0 {
		t.refuse(name, idValue, fmt.Sprintf("%q is no port name", name.text()), "correct the KVMConfig: lower-case letters, digits and dashes")
	}
	switch {
	case ok && okNode && text(name) != "":
		return workerPort{text(name), port, nodePort, []*leaf{name, target, node}}, true
	case !ok && target != nil:
		refuseWith(target, name, node)
	case !okNode && node != nil:
		refuseWith(node, name, target)
	case name != nil:
		refuseWith(name, target, node)
	}
	return workerPort{}, false
}

// defaultPorts are what the operator exposes when the KVMConfig maps nothing.
func (t *translation) defaultPorts() []workerPort {
	allocated := map[int64]corev1.ServicePort{}
	for i := range t.cluster.Services {
		if service := &t.cluster.Services[i].Object; service.Name == string(legacy.Worker) {
			for _, port := range service.Spec.Ports {
				allocated[int64(port.Port)] = port
			}
		}
	}
	var out []workerPort
	for _, fallback := range []struct{ name, field string }{{"http", "insecurePort"}, {"https", "securePort"}} {
		l := t.config("spec.cluster.kubernetes.ingressController." + fallback.field)
		port, ok := t.port(l)
		if !ok {
			continue
		}
		entry := workerPort{name: fallback.name, port: port, leaves: []*leaf{l}}
		if service, found := allocated[port]; found {
			entry.name, entry.nodePort = service.Name, int64(service.NodePort)
		}
		out = append(out, entry)
	}
	return out
}

// port reads a port number; anything else is refused.
func (t *translation) port(l *leaf) (int64, bool) {
	if l == nil || l.refused != "" {
		return 0, false
	}
	if port, ok := integer(l.value); ok && port >= 1 && port <= 65535 {
		return port, true
	}
	t.refuse(l, idValue, fmt.Sprintf("%q is no port number", l.text()), "correct the legacy object: ports are 1 to 65535")
	return 0, false
}

func integer(value any) (int64, bool) {
	switch v := value.(type) {
	case int64:
		return v, true
	case float64:
		return int64(v), v == float64(int64(v))
	}
	return 0, false
}

// clusterObject makes the Cluster: paused, and without controlPlaneRef, which could never be taken back (design phase 4).
func (t *translation) clusterObject() {
	o := t.newObject(coreVersion, "Cluster", t.result.Namespace, t.id, PhaseTranslate)
	o.set("metadata.labels[giantswarm.io/cluster]", t.id, t.identityOf())
	o.set("metadata.labels[giantswarm.io/organization]", t.org, t.organization())
	if l := t.config("metadata.labels[release.giantswarm.io/version]"); text(l) != "" && validLabelValue(text(l)) {
		o.set("metadata.labels[release.giantswarm.io/version]", text(l), t.from("identity", l, t.get(sourceCluster, "spec.guest.releaseVersion"), t.get(sourceCluster, "metadata.labels[release.giantswarm.io/version]")))
	} else if text(l) != "" {
		t.refuse(l, idValue, fmt.Sprintf("%q is no label value", text(l)), "correct the label")
	}
	if l := t.get(sourceCluster, "spec.guest.name"); text(l) != "" {
		o.set("metadata.annotations[cluster.giantswarm.io/description]", text(l), t.from("identity", l))
	}
	if l := t.get(sourceRecord, "cluster.create_date"); text(l) != "" {
		o.set("metadata.annotations[cluster.giantswarm.io/created-at]", text(l), t.from("identity", l))
	}
	// Cluster API would put it on in a look of its own, and it looks at an object once a second.
	o.add("metadata.finalizers", clusterv1.ClusterFinalizer, t.from("infrastructure"))
	o.set("spec.paused", true, t.from("pause"))
	if cidr, ok := t.serviceCIDR(); ok {
		o.set("spec.clusterNetwork.services.cidrBlocks", []any{cidr}, t.from("network-services", t.config("spec.cluster.kubernetes.api.clusterIPRange"), t.flag("--service-cluster-ip-range")))
	}
	if l := t.config("spec.cluster.kubernetes.domain"); text(l) != "" && len(validation.IsDNS1123Subdomain(text(l))) > 0 {
		t.refuse(l, idValue, fmt.Sprintf("%q is no DNS domain", text(l)), "correct the KVMConfig")
	} else if text(l) != "" {
		o.set("spec.clusterNetwork.serviceDomain", text(l), t.from("network-domain", l))
	}
	// Legacy and new API servers alike listen on this port; the provider's endpoints lead there.
	if l := t.config("spec.cluster.kubernetes.api.securePort"); text(l) != "" {
		if port, ok := t.port(l); ok {
			o.set("spec.clusterNetwork.apiServerPort", port, t.from("endpoint", l, t.flag("--secure-port")))
		}
	}
	if cidr, ok := t.podCIDR(); ok && t.nodesHavePodCIDR() {
		o.set("spec.clusterNetwork.pods.cidrBlocks", []any{cidr}, t.from("network-pods", t.config("spec.cluster.calico.subnet"), t.config("spec.cluster.calico.cidr")))
		t.find(idNodeCIDR, t.config("spec.cluster.calico.subnet"), "the workload cluster's Nodes carry pod CIDRs, which this platform never allocated", "look at who allocates them before the control plane moves")
	}
	o.set("spec.infrastructureRef", map[string]any{"apiGroup": infraGroup, "kind": "KVMCluster", "name": t.id}, t.from("infrastructure"))
	o.Note = "stays paused until every Machine is there; its controlPlaneRef is set only past the point of no return"
	t.add(o)
}

// flag returns the leaf of an API server flag.
func (t *translation) flag(name string) *leaf {
	return t.setting(legacy.Master, "file:"+fileAPIServer+"#flag ", name)
}

// setting returns a setting that the nodes of a role share, or the first node's.
func (t *translation) setting(role legacy.Role, path ...string) *leaf {
	if l := t.get(ignitionOf(role), path...); l != nil {
		return l
	}
	for i := range t.cluster.Nodes {
		if node := &t.cluster.Nodes[i]; node.Role == role {
			if l := t.get(t.of(node).ignition, path...); l != nil {
				return l
			}
		}
	}
	return nil
}

// ignitionOf is the source of settings that all nodes of a role share.
func ignitionOf(role legacy.Role) string {
	if role == legacy.Master {
		return sourceIgnition + "/master"
	}
	return sourceIgnition + "/worker"
}

// serviceCIDR returns the service network, checked and compared with the running API server's flag.
func (t *translation) serviceCIDR() (string, bool) {
	l := t.config("spec.cluster.kubernetes.api.clusterIPRange")
	prefix, ok := t.prefix(l, text(l))
	if running := t.flag("--service-cluster-ip-range"); running != nil && running.text() != text(l) {
		t.refuse(l, idContradict, fmt.Sprintf("the KVMConfig says %s, the API server was started with %s", text(l), running.text()), "correct the KVMConfig: Services live in the running range")
		prefix, ok = t.prefix(running, running.text())
	}
	return prefix.String(), ok
}

// podCIDR returns Calico's network.
func (t *translation) podCIDR() (string, bool) {
	subnet, length := t.config("spec.cluster.calico.subnet"), t.config("spec.cluster.calico.cidr")
	if subnet == nil || length == nil {
		return "", false
	}
	prefix, ok := t.prefix(subnet, text(subnet)+"/"+text(length))
	return prefix.String(), ok
}

func (t *translation) prefix(l *leaf, value string) (netip.Prefix, bool) {
	if l == nil {
		return netip.Prefix{}, false
	}
	prefix, err := netip.ParsePrefix(value)
	if err != nil {
		t.refuse(l, idValue, fmt.Sprintf("%q is no network in address/length form", value), "correct the KVMConfig")
		return netip.Prefix{}, false
	}
	return prefix.Masked(), true
}

func (t *translation) nodesHavePodCIDR() bool {
	for i := range t.cluster.Nodes {
		if node := t.cluster.Nodes[i].Node; node != nil && node.Object.Spec.PodCIDR != "" {
			return true
		}
	}
	return false
}

// secretObject makes a user-provided Secret: type Opaque, so that deleting a control plane never takes the customer's CA with it
// (capi-contract.md 10).
func (t *translation) secretObject(suffix, phase string) *Object {
	o := t.newObject("v1", "Secret", t.result.Namespace, t.id+"-"+suffix, phase)
	o.Secret = true
	o.set("metadata.labels["+clusterv1.ClusterNameLabel+"]", t.id, t.identityOf())
	o.set("type", "Opaque", t.from("user-provided"))
	return o
}

// data sets one key of a Secret.
func data(o *Object, name string, value []byte, rule origin) {
	o.set(child("data", name), base64.StdEncoding.EncodeToString(value), rule)
}
