package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/fixtures/edit"
)

// defect is what is wrong with a cluster on purpose.
type defect string

const (
	healthy           defect = ""
	missingEncryption defect = "missing encryption key"
	silentWorker      defect = "worker not ready"
	twoMasters        defect = "two masters"
)

// fleetCluster is one cluster to write: small, since the whole fleet is planned before anything is written.
type fleetCluster struct {
	index            int
	id, organization string
	masters, workers int
	defect           defect
	base             *recording
}

// fleetNode is one node of a cluster with the values of its slots.
type fleetNode struct {
	template *nodeTemplate
	silent   bool
	slots    map[string]string
}

// planFleet decides what each cluster looks like.
func planFleet(o options, bases []*recording) []fleetCluster {
	used := map[string]bool{}
	for _, base := range bases {
		used[base.id] = true
	}
	clusters := make([]fleetCluster, o.first+o.clusters)
	for index := range clusters {
		c := fleetCluster{index: index, base: bases[index%len(bases)], masters: 1}
		c.id = shortID(used, "cluster", index)
		c.organization = organizations()[int(number("organization", index)%uint64(len(organizations())))] //nolint:gosec // G115: below 20.
		if o.organization != "" {
			c.organization = o.organization
		}
		c.workers = o.workers
		if c.workers == 0 {
			c.workers = o.minNodes - 1 + int(number("nodes", index)%uint64(o.maxNodes-o.minNodes+1)) //nolint:gosec // G115: small numbers.
		}
		if index%20 == 19 {
			c.defect = []defect{missingEncryption, silentWorker, twoMasters}[index/20%3]
		}
		if c.defect == twoMasters {
			c.masters = 2
		}
		clusters[index] = c
	}
	return clusters[o.first:]
}

// render returns the lists of one cluster by path below its directory, one JSON text per object, and the files of its CA.
func (c fleetCluster) render(h hosts) (lists map[string][][]byte, authority map[string][]byte, err error) {
	shared, err := c.base.certificates(c.id)
	if err != nil {
		return nil, nil, err
	}
	maps.Copy(shared, map[string]string{
		"id": c.id, "organization": c.organization, "Organization": title(c.organization), "encryption": encryptionKey(c.id),
		"mail":    "@" + c.organization + ".example.test",
		"network": offset("100.64.0.0", c.index<<(32-networkBits)) + "/" + strconv.Itoa(networkBits),
		"port21":  strconv.Itoa(21000 + c.vni()), "port23": strconv.Itoa(23000 + c.vni()), "port47": strconv.Itoa(47000 + c.vni()),
		"json:vni": strconv.Itoa(c.vni()), "json:workers": strconv.Itoa(c.workers), "json:lun": strconv.Itoa(c.index + 1),
		"json:nodeport0": strconv.Itoa(30100 + 2*(c.index%1300)), "json:nodeport1": strconv.Itoa(30101 + 2*(c.index%1300)),
	})
	for index := range c.base.serviceIPs {
		shared[fmt.Sprintf("service%d", index)] = offset("10.3.0.10", c.index*len(c.base.serviceIPs)+index)
	}

	nodes := c.nodes(h)
	lists = map[string][][]byte{}
	if err := c.lists(nodes, shared); err != nil {
		return nil, nil, err
	}
	for _, object := range c.base.shared {
		if c.defect == missingEncryption && object.name == c.base.id+"-encryption" {
			continue
		}
		if err := appendObject(lists, object, c.lookup("", shared)); err != nil {
			return nil, nil, err
		}
	}
	for _, node := range nodes {
		for _, object := range node.template.objects {
			if err := appendObject(lists, object, c.lookup(node.slots["node"], node.slots, shared)); err != nil {
				return nil, nil, err
			}
		}
	}
	return lists, map[string][]byte{"ca.crt": []byte(shared["ca"] + "\n"), "ca.key": c.base.caKeyPEM}, nil
}

// nodes decides the slots of every node.
func (c fleetCluster) nodes(h hosts) []fleetNode {
	used := map[string]bool{c.id: true}
	nodes := make([]fleetNode, 0, c.masters+c.workers)
	for position := range c.masters {
		n := fleetNode{template: c.base.masters[position%len(c.base.masters)]}
		n.slots = c.slots(used, "master", position, position+1, h.master(c.index, position))
		nodes = append(nodes, n)
	}
	for position := range c.workers {
		// The first recorded worker may have host volumes, which a host has only once: use it once.
		workers, choice := c.base.workers, position
		if position > 0 && len(workers) > 1 {
			choice = 1 + (position-1)%(len(workers)-1)
		}
		n := fleetNode{template: workers[choice]}
		if c.defect == silentWorker && position == c.workers-1 {
			n.template, n.silent = c.base.silent, true
		}
		n.slots = c.slots(used, "worker", position, c.masters+position+1, h.worker(c.index, position))
		nodes = append(nodes, n)
	}
	return nodes
}

// slots gives the names of one node.
func (c fleetCluster) slots(used map[string]bool, role string, position, index int, on host) map[string]string {
	id := shortID(used, "node", c.id, role, position)
	hash := word("0123456789bcdf", 1, "hash", c.id, id) + word(safe, 9, "hash", c.id, id)
	tunnel := strings.Split(c.base.podNetwork, ".")
	return map[string]string{
		"node": id, "hash": hash, "pod": role + "-" + id + "-" + hash + "-" + word(safe, 5, "pod", c.id, id),
		"ip": offset("100.64.0.0", c.index<<(32-networkBits)+4*on.ordinal+2), "host": on.name, "hostip": on.ip,
		"initiator":   fmt.Sprintf("giantswarm-%s-%s-%d", c.id, role, index),
		"claimprefix": fmt.Sprintf("local-pvc-worker-%s-%d-", c.id, position),
		"etcdclaim":   fmt.Sprintf("pvc-master-etcd-%s-%d", c.id, position),
		"etcdvolume":  fmt.Sprintf("etcd-%s-%d", c.id, position), "etcddirectory": fmt.Sprintf("k8s-master-vm%d", position),
		"tunnel": fmt.Sprintf("%s.%s.%d.64", tunnel[0], tunnel[1], index), "index": strconv.Itoa(index), "role": role,
	}
}

// lists fills the slots that stand for lists of nodes.
func (c fleetCluster) lists(nodes []fleetNode, shared map[string]string) error {
	parts := map[string][]string{}
	var indexes, statuses []string
	for _, n := range nodes {
		role, ip := n.slots["role"], n.slots["ip"]
		lookup := c.lookup(n.slots["node"], n.slots, shared)
		for slot, t := range map[string]template{role + "sizes": n.template.sizing, role + "guests": n.template.guest, "nodes": n.template.status} {
			var text bytes.Buffer
			if err := t.render(&text, lookup); err != nil {
				return err
			}
			if slot == "nodes" {
				// By name, as the operator writes them: the name is unique, so it may lead the sort key.
				statuses = append(statuses, n.slots["pod"]+"\x00"+text.String())
				continue
			}
			parts[slot] = append(parts[slot], text.String())
		}
		parts[role+"ids"] = append(parts[role+"ids"], fmt.Sprintf(`{"id":%q}`, n.slots["node"]))
		parts[role+"slices"] = append(parts[role+"slices"], fmt.Sprintf(`{"addresses":[%q],"conditions":{"ready":%t}}`, ip, !n.silent))
		addresses := role + "addresses"
		if n.silent {
			addresses = "notready"
		}
		parts[addresses] = append(parts[addresses], fmt.Sprintf(`{"ip":%q}`, ip))
		indexes = append(indexes, fmt.Sprintf("%q:%s", n.slots["node"], n.slots["index"]))
	}
	slices.Sort(indexes)
	slices.Sort(statuses)
	for _, status := range statuses {
		parts["nodes"] = append(parts["nodes"], status[strings.IndexByte(status, 0)+1:])
	}
	for _, slot := range []string{"masterids", "workerids", "mastersizes", "workersizes", "masterguests", "workerguests", "masteraddresses", "workeraddresses", "masterslices", "workerslices", "nodes"} {
		shared["json:"+slot] = "[" + strings.Join(parts[slot], ",") + "]"
	}
	if silent := parts["notready"]; len(silent) > 0 {
		shared["json:workeraddresses"] += `,"notReadyAddresses":[` + strings.Join(silent, ",") + "]"
	}
	shared["json:indexes"] = "{" + strings.Join(indexes, ",") + "}"
	return nil
}

// lookup resolves slots: uids and container ids are derived per cluster and node, names come from the maps in order.
func (c fleetCluster) lookup(node string, maps ...map[string]string) func(string) (string, error) {
	return func(slot string) (string, error) {
		kind, old, _ := strings.Cut(slot, ":")
		switch kind {
		case "uid":
			return edit.UID(c.id + "/" + node + "/" + old), nil
		case "hex":
			sum := sha256.Sum256([]byte(c.id + "/" + node + "/" + old))
			return hex.EncodeToString(sum[:])[:len(old)], nil
		case "volume":
			return old + "-" + c.id, nil
		}
		for _, values := range maps {
			if value, ok := values[slot]; ok {
				return value, nil
			}
		}
		return "", fmt.Errorf("cluster %s: no value for slot %s", c.id, slot)
	}
}

// vni is the cluster's network id; host ports are derived from it.
func (c fleetCluster) vni() int { return 100 + c.index }

func appendObject(lists map[string][][]byte, object compiled, lookup func(string) (string, error)) error {
	var text bytes.Buffer
	if err := object.template.render(&text, lookup); err != nil {
		return fmt.Errorf("rendering %s of %s: %w", object.name, object.file, err)
	}
	lists[object.file] = append(lists[object.file], text.Bytes())
	return nil
}

// record is what cluster-service's StorageConfig holds about the cluster.
func (c fleetCluster) record() map[string]any {
	name := title(c.organization) + " " + purposes()[c.index%len(purposes())]
	cluster := fmt.Sprintf(`{"id": %q, "name": %q, "owner": %q, "release_version": "16.2.1", "create_date": "2022-03-01T11:02:55Z", `+
		`"api_endpoint": "https://api.%s.k8s.anubis.example.test", "scaling": {"min": %d, "max": %d}}`,
		c.id, name, c.organization, c.id, c.workers, c.workers)
	return map[string]any{
		"/cluster/" + c.id + "/cluster":                             cluster,
		"/cluster/" + c.id + "/owner":                               c.organization,
		"/cluster/" + c.id + "/vni":                                 strconv.Itoa(c.vni()),
		path.Join("/organization", c.organization, "cluster", c.id): c.id,
	}
}
