package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/fixtures/edit"
)

// host is one host of the management cluster; its ordinal chooses the /30 in every cluster's network.
type host struct {
	name, ip string
	ordinal  int
}

// hosts are the management cluster's hosts: as many as the fleet needs, up to what a cluster network has room for.
type hosts struct{ masters, workers int }

// planHosts counts hosts: at most about eight workers or twenty masters on each, and never less than one worker of the
// largest cluster per host, since two VMs of a cluster never share one.
func planHosts(clusters []fleetCluster) (hosts, error) {
	masters, workers, largest := 0, 0, 0
	for _, c := range clusters {
		masters += c.masters
		workers += c.workers
		largest = max(largest, c.workers)
	}
	h := hosts{masters: min(max(3, (masters+19)/20), 60)}
	h.workers = min(max(16, (workers+7)/8, largest), maxHosts-h.masters)
	if largest > h.workers {
		return hosts{}, fmt.Errorf("%d workers in one cluster: at most %d, one per host", largest, h.workers)
	}
	return h, nil
}

func (h hosts) master(cluster, position int) host {
	index := (cluster + position) % h.masters
	return host{name: fmt.Sprintf("anubis-master-%d", index), ip: offset("10.10.0.11", index), ordinal: index}
}

func (h hosts) worker(cluster, position int) host {
	index := (cluster*7 + position) % h.workers
	return host{name: fmt.Sprintf("anubis-worker-%02d", index), ip: offset("10.10.0.101", index), ordinal: h.masters + index}
}

// management renders the objects of the management cluster; hosts and StorageConfig fit the fleet.
func management(directory string, clusters []fleetCluster, h hosts) (map[string][][]byte, error) {
	set, err := edit.Load(directory)
	if err != nil {
		return nil, err
	}
	lists := map[string][][]byte{}
	add := func(path string, object edit.Object) error {
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(object); err != nil {
			return fmt.Errorf("encoding %s: %w", edit.Describe(object), err)
		}
		file := fileOf(path, object)
		lists[file] = append(lists[file], bytes.TrimSuffix(text.Bytes(), []byte("\n")))
		return nil
	}
	var addErr error
	set.Each(func(path string, object edit.Object) {
		if addErr != nil || edit.Text(object, "kind") == "Node" {
			return
		}
		if edit.Text(object, "kind") == "StorageConfig" {
			data := map[string]any{}
			for _, c := range clusters {
				maps.Copy(data, c.record())
			}
			edit.Put(object, data, "spec", "storage", "data")
		}
		addErr = add(path, object)
	})
	if addErr != nil {
		return nil, addErr
	}

	recorded := map[string]edit.Object{}
	for _, node := range set.Objects("nodes.yaml") {
		recorded[edit.Text(node, "metadata", "labels", "role")] = node
	}
	for index := range h.masters + h.workers {
		on, role := h.master(index, 0), "master"
		if index >= h.masters {
			position := index - h.masters
			on, role = host{name: fmt.Sprintf("anubis-worker-%02d", position), ip: offset("10.10.0.101", position)}, "worker"
		}
		template := recorded[role]
		if template == nil {
			return nil, fmt.Errorf("making host %s: no recorded host with role %s", on.name, role)
		}
		node := edit.Clone(template,
			edit.Text(template, "metadata", "name"), on.name,
			edit.Text(template, "metadata", "labels", "ip"), on.ip,
			edit.Text(template, "metadata", "uid"), edit.UID("host/"+on.name))
		if err := add("nodes.yaml", node); err != nil {
			return nil, err
		}
	}
	return lists, nil
}

// managementDirectory is where the recorded management cluster lies, beside the fixtures.
func managementDirectory(base string) string {
	return filepath.Join(filepath.Dir(strings.TrimRight(filepath.Clean(base), "/")), "management-cluster")
}
