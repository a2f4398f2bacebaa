package main

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/fixtures/edit"
)

// recording is one recorded cluster, compiled.
type recording struct {
	id, organization string
	caPEM, caKeyPEM  []byte
	ca               *x509.Certificate
	caKey            crypto.Signer
	leaves           map[string]*x509.Certificate
	serviceIPs       []string
	podNetwork       string

	// shared are the objects that exist once per cluster.
	shared           []compiled
	masters, workers []*nodeTemplate
	// silent is the last worker after its kubelet stopped reporting.
	silent *nodeTemplate
}

// compiled is one object, or any other value, as a template.
type compiled struct {
	// file is the path of the list that holds the object; name is its recorded name.
	file, name string
	template   template
}

// nodeTemplate is everything that exists because of one node.
type nodeTemplate struct {
	role    string
	objects []compiled
	// Entries in lists of other objects.
	sizing, guest, status template
}

// loadRecording reads and compiles testdata/fixtures/<id>.
func loadRecording(base, id string) (*recording, error) {
	directory := filepath.Join(base, id)
	set, err := edit.Load(filepath.Join(directory, "input"), func(path string) bool {
		inside := strings.HasPrefix(path, "workload-cluster/") && path != "workload-cluster/nodes.yaml"
		return inside || path == "ingresses-v1beta1.yaml" || path == "release.yaml"
	})
	if err != nil {
		return nil, err
	}
	r := &recording{id: id, leaves: map[string]*x509.Certificate{}}
	if r.caPEM, err = os.ReadFile(filepath.Join(directory, "ca", "ca.crt")); err != nil {
		return nil, fmt.Errorf("reading CA of %s: %w", id, err)
	}
	if r.caKeyPEM, err = os.ReadFile(filepath.Join(directory, "ca", "ca.key")); err != nil {
		return nil, fmt.Errorf("reading CA key of %s: %w", id, err)
	}
	if r.ca, err = edit.ParseCertificate(r.caPEM); err != nil {
		return nil, err
	}
	if r.caKey, err = edit.ParseKey(r.caKeyPEM); err != nil {
		return nil, err
	}
	if err := r.compile(set); err != nil {
		return nil, fmt.Errorf("compiling recording %s: %w", id, err)
	}
	return r, nil
}

// compile fills the templates: names of the cluster first, then node by node, then what is left.
func (r *recording) compile(set *edit.Set) error {
	config, err := set.Find("KVMConfig", r.id)
	if err != nil {
		return err
	}
	clusterConfig, err := set.Find("KVMClusterConfig", r.id+"-kvm-cluster-config")
	if err != nil {
		return err
	}
	names, err := r.sharedNames(set, config)
	if err != nil {
		return err
	}
	for _, role := range []string{"master", "worker"} {
		for position, node := range edit.Maps(config, "spec", "cluster", role+"s") {
			b := nodeBuilder{recording: r, set: set, config: config, clusterConfig: clusterConfig, names: names, role: role, position: position, id: edit.Text(node, "id")}
			compiledNode, err := b.build(false)
			if err != nil {
				return err
			}
			if role == "master" {
				r.masters = append(r.masters, compiledNode)
				continue
			}
			r.workers = append(r.workers, compiledNode)
			if r.silent, err = b.build(true); err != nil {
				return err
			}
		}
	}
	return r.compileShared(set, names, config, clusterConfig)
}

// sharedNames maps every recorded name that belongs to the cluster as a whole to its slot.
func (r *recording) sharedNames(set *edit.Set, config edit.Object) (map[string]string, error) {
	r.organization = edit.Text(config, "spec", "cluster", "customer", "id")
	r.podNetwork = edit.Text(config, "spec", "cluster", "calico", "subnet")
	flannel, err := set.Find("FlannelConfig", r.id)
	if err != nil {
		return nil, err
	}
	vni := int(edit.At(config, "spec", "kvm", "network", "flannel", "vni").(float64))
	names := map[string]string{
		r.id: "id", r.organization: "organization", title(r.organization): "Organization",
		edit.Text(flannel, "spec", "flannel", "spec", "network"): "network",
		strconv.Itoa(21000 + vni):                                "port21",
		strconv.Itoa(23000 + vni):                                "port23",
		strconv.Itoa(47000 + vni):                                "port47",
		strings.TrimSpace(string(r.caPEM)):                       "ca",
		// Comments of SSH keys name this organisation in both recordings.
		"@acme.example.test": "mail",
	}
	for index, service := range set.Objects("services.yaml") {
		r.serviceIPs = append(r.serviceIPs, edit.Text(service, "spec", "clusterIP"))
		names[r.serviceIPs[index]] = fmt.Sprintf("service%d", index)
	}
	for _, secret := range set.Objects("secrets.yaml") {
		if edit.Text(secret, "data", "encryption") != "" {
			key, err := edit.SecretValue(secret, "encryption")
			if err != nil {
				return nil, err
			}
			names[string(key)] = "encryption"
			continue
		}
		text, err := edit.SecretValue(secret, "crt")
		if err != nil {
			return nil, err
		}
		component := edit.Text(secret, "metadata", "labels", "giantswarm.io/certificate")
		if r.leaves[component], err = edit.ParseCertificate(text); err != nil {
			return nil, fmt.Errorf("reading certificate %s: %w", component, err)
		}
		names[strings.TrimSpace(string(text))] = "crt:" + component
	}
	return names, nil
}

// compileShared compiles what exists once, after its lists of nodes were replaced by slots.
func (r *recording) compileShared(set *edit.Set, names map[string]string, config, clusterConfig edit.Object) error {
	for place, slot := range map[string]string{
		"spec.cluster.masters": "masterids", "spec.cluster.workers": "workerids", "spec.kvm.masters": "mastersizes", "spec.kvm.workers": "workersizes",
		"spec.cluster.scaling.min": "workers", "spec.cluster.scaling.max": "workers",
		"spec.kvm.network.flannel.vni": "vni", "status.cluster.nodes": "nodes", "status.kvm.nodeIndexes": "indexes",
	} {
		edit.Put(config, "@@json:"+slot+"@@", strings.Split(place, ".")...)
	}
	for index, mapping := range edit.Maps(config, "spec", "kvm", "portMappings") {
		mapping["nodePort"] = fmt.Sprintf("@@json:nodeport%d@@", index)
	}
	edit.Put(clusterConfig, "@@json:masterguests@@", "spec", "guest", "masters")
	edit.Put(clusterConfig, "@@json:workerguests@@", "spec", "guest", "workers")
	for _, flannel := range set.Objects("flannelconfig.yaml") {
		edit.Put(flannel, "@@json:vni@@", "spec", "flannel", "spec", "vni")
	}
	for _, endpoints := range set.Objects("endpoints.yaml") {
		name := edit.Text(endpoints, "metadata", "name")
		for _, subset := range edit.Maps(endpoints, "subsets") {
			// Followed by notReadyAddresses when there are any; see fleetCluster.endpoints.
			subset["addresses"] = "@@json:" + name + "addresses@@"
		}
	}
	for _, slice := range set.Objects("endpointslices.yaml") {
		edit.Put(slice, "@@json:"+edit.Text(slice, "metadata", "labels", "kubernetes.io/service-name")+"slices@@", "endpoints")
	}
	for _, service := range set.Objects("services.yaml") {
		for index, port := range edit.Maps(service, "spec", "ports") {
			if edit.Text(service, "metadata", "name") == "worker" {
				port["nodePort"] = fmt.Sprintf("@@json:nodeport%d@@", index)
			}
		}
	}

	c := newCompiler(names)
	var err error
	set.Each(func(path string, object edit.Object) {
		if err != nil || r.ownerNode(object) != "" {
			return
		}
		var t template
		if t, err = c.object(object); err == nil {
			r.shared = append(r.shared, compiled{file: fileOf(path, object), name: edit.Text(object, "metadata", "name"), template: t})
		}
	})
	return err
}

// ownerNode returns the id of the node because of which an object exists, or "".
func (r *recording) ownerNode(object edit.Object) string {
	name := edit.Text(object, "metadata", "name")
	switch edit.Text(object, "kind") {
	case "Deployment", "ReplicaSet", "Pod", "PersistentVolumeClaim":
		return edit.Text(object, "metadata", "labels", "node")
	case "ConfigMap":
		for _, role := range []string{"master", "worker"} {
			if id, ok := strings.CutPrefix(name, role+"-"+r.id+"-"); ok {
				return id
			}
		}
	case "Node":
		return strings.Split(name, "-")[1]
	case "PersistentVolume":
		return "volume"
	}
	return ""
}

// nodeBuilder compiles one node.
type nodeBuilder struct {
	*recording
	set                   *edit.Set
	config, clusterConfig edit.Object
	names                 map[string]string
	role, id              string
	position              int
}

func (b nodeBuilder) build(silent bool) (*nodeTemplate, error) {
	var objects []located
	claims := map[string]bool{}
	var pod edit.Object
	b.set.Each(func(path string, object edit.Object) {
		name := edit.Text(object, "metadata", "name")
		owner := b.ownerNode(object)
		if owner == "volume" && claims[edit.Text(object, "spec", "claimRef", "name")] {
			owner = b.id
		}
		if owner != b.id {
			return
		}
		object = edit.Clone(object)
		if silent {
			edit.StopReporting(object, "2026-11-22T10:14:20Z", "2026-11-22T10:15:00Z")
		}
		switch edit.Text(object, "kind") {
		case "PersistentVolumeClaim":
			claims[name] = true
		case "Pod":
			pod = object
		}
		objects = append(objects, located{path, object})
	})
	if pod == nil {
		return nil, fmt.Errorf("finding pod of node %s: not there", b.id)
	}

	names := b.nodeNames(pod, objects)
	c := newCompiler(names)
	node := &nodeTemplate{role: b.role}
	for _, item := range objects {
		if edit.At(item.object, "spec", "iscsi", "lun") != nil {
			edit.Put(item.object, "@@json:lun@@", "spec", "iscsi", "lun")
		}
		t, err := c.object(item.object)
		if err != nil {
			return nil, err
		}
		node.objects = append(node.objects, compiled{file: fileOf(item.path, item.object), name: edit.Text(item.object, "metadata", "name"), template: t})
	}
	var err error
	if node.sizing, err = c.value(edit.List(b.config, "spec", "kvm", b.role+"s")[b.position]); err != nil {
		return nil, err
	}
	if node.guest, err = c.value(edit.List(b.clusterConfig, "spec", "guest", b.role+"s")[b.position]); err != nil {
		return nil, err
	}
	for _, status := range edit.Maps(b.config, "status", "cluster", "nodes") {
		if edit.Text(status, "name") == edit.Text(pod, "metadata", "name") {
			node.status, err = c.value(status)
		}
	}
	return node, err
}

// located is an object and the file that it was read from.
type located struct {
	path   string
	object edit.Object
}

// nodeNames adds the names that belong to one node to those of the cluster.
func (b nodeBuilder) nodeNames(pod edit.Object, objects []located) map[string]string {
	names := map[string]string{}
	maps.Copy(names, b.names)
	name, hash := edit.Text(pod, "metadata", "name"), edit.Text(pod, "metadata", "labels", "pod-template-hash")
	index := int(edit.At(b.config, "status", "kvm", "nodeIndexes", b.id).(float64))
	maps.Copy(names, map[string]string{
		name: "pod", hash: "hash", b.id: "node",
		edit.Text(pod, "metadata", "annotations", "endpoint.kvm.giantswarm.io/ip"): "ip",
		edit.Text(pod, "spec", "nodeName"):                                         "host",
		edit.Text(pod, "status", "hostIP"):                                         "hostip",
		fmt.Sprintf("giantswarm-%s-%s-%d", b.recording.id, b.role, index):          "initiator",
		fmt.Sprintf("local-pvc-worker-%s-%d-", b.recording.id, b.position):         "claimprefix",
		fmt.Sprintf("pvc-master-etcd-%s-%d", b.recording.id, b.position):           "etcdclaim",
		fmt.Sprintf("etcd-%s-%d", b.recording.id, b.position):                      "etcdvolume",
		fmt.Sprintf("k8s-master-vm%d", b.position):                                 "etcddirectory",
	})
	for _, item := range objects {
		switch edit.Text(item.object, "kind") {
		case "PersistentVolume":
			if old := edit.Text(item.object, "metadata", "name"); strings.HasPrefix(old, "local-") {
				names[old] = "volume:" + old
				// Two clusters on one host must not share a directory.
				local := edit.Text(item.object, "spec", "local", "path")
				names[local] = "volume:" + local
			}
		case "Node":
			names[edit.Text(item.object, "metadata", "annotations", "projectcalico.org/IPv4IPIPTunnelAddr")] = "tunnel"
		}
	}
	return names
}

// fileOf is the path of the list for an object, in the directory of the view it belongs to.
func fileOf(path string, object edit.Object) string {
	plural := strings.ToLower(edit.Text(object, "kind"))
	switch {
	case strings.HasSuffix(plural, "ss"):
		plural += "es"
	case !strings.HasSuffix(plural, "s"):
		plural += "s"
	}
	return filepath.Join(filepath.Dir(path), strings.ReplaceAll(plural, "policys", "policies")+".json")
}

// refresh replaces the CA's key and moves the validity of all certificates to now, as if the cluster had been made an hour ago.
func (r *recording) refresh(now time.Time) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("making a CA key for %s: %w", r.id, err)
	}
	r.caKey, r.caKeyPEM = key, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	now = now.Add(-time.Hour).UTC().Truncate(time.Second)
	move := func(old *x509.Certificate) *x509.Certificate {
		moved := *old
		moved.NotBefore, moved.NotAfter = now, now.Add(old.NotAfter.Sub(old.NotBefore))
		return &moved
	}
	r.ca = move(r.ca)
	r.ca.PublicKey = key.Public()
	// Made from the key again when it is signed.
	r.ca.SubjectKeyId = nil
	for component, leaf := range r.leaves {
		r.leaves[component] = move(leaf)
	}
	return nil
}

// certificates signs the cluster's CA and all leaf certificates under its new names; keys are slots.
func (r *recording) certificates(id string) (map[string]string, error) {
	rename := func(name string) string { return strings.ReplaceAll(name, r.id, id) }
	caPEM, err := edit.Reissue(r.ca, nil, r.caKey, id+"/ca", edit.Leaf{Rename: rename})
	if err != nil {
		return nil, err
	}
	ca, err := edit.ParseCertificate(caPEM)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{"ca": string(bytes.TrimSpace(caPEM))}
	components := make([]string, 0, len(r.leaves))
	for component := range r.leaves {
		components = append(components, component)
	}
	slices.Sort(components)
	for _, component := range components {
		leaf, err := edit.Reissue(r.leaves[component], ca, r.caKey, id+"/"+component, edit.Leaf{Rename: rename})
		if err != nil {
			return nil, err
		}
		texts["crt:"+component] = string(leaf)
	}
	return texts, nil
}
