package check

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// IDs of findings an inventory makes itself.
const (
	// FindingUnreadable names a cluster or the fleet when it could not be read at all.
	FindingUnreadable = "INV-READ-001"
)

// InventoryOptions choose what TakeInventory does. Now must be set; everything else may be zero.
type InventoryOptions struct {
	// Now is the clock for expiry.
	Now time.Time
	// Tool is the program's version, for the document.
	Tool string
	// Clusters limits the inventory to these ids; empty means all.
	Clusters []string
	// Workers is how many clusters are held in memory at a time; zero means one per processor.
	Workers int
	// Accept returns the waivers for a cluster, for example from its playbook; nil means none.
	Accept func(id string) []Accepted
	// State returns the state of a cluster whose migration is known to have begun; nil and false mean that the checks decide.
	State func(id string) (State, bool)
}

// TakeInventory looks at every cluster of a source and returns the document, sorted by id. At most Workers pictures are in memory at a
// time. A cluster that cannot be read is in the document with state unknown and the reason; the error is for a source that cannot
// be read at all, and for an interrupted look.
func TakeInventory(ctx context.Context, source legacy.Source, options InventoryOptions) (Inventory, error) {
	document := Inventory{
		APIVersion: migrationv1alpha1.APIVersion,
		Kind:       migrationv1alpha1.KindInventory,
		Metadata:   Metadata{CreatedAt: options.Now, Tool: options.Tool},
		Source:     source.Describe(),
		Clusters:   []Entry{},
		Findings:   []finding.Finding{},
	}
	ids := slices.Clone(options.Clusters)
	if len(ids) == 0 {
		var err error
		if ids, err = source.IDs(ctx); err != nil {
			return document, fmt.Errorf("listing the clusters of %s: %w", source.Describe(), err)
		}
	}
	ids = distinct(ids)

	fleet, err := source.Fleet(ctx)
	if err != nil {
		document.Findings = append(document.Findings, finding.Finding{
			ID: FindingUnreadable, Severity: finding.Error, Object: source.Describe(),
			Message: "what belongs to the management cluster as a whole could not be read: " + err.Error(),
		})
		fleet = nil
	} else {
		document.Records = fleet.Records
		document.Findings = append(document.Findings, fleet.Problems...)
	}

	entries := make([]Entry, len(ids))
	neighbours := make([]Neighbour, len(ids))
	workers := options.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	next := make(chan int)
	var group sync.WaitGroup
	for range min(workers, max(1, len(ids))) {
		group.Go(func() {
			for n := range next {
				entries[n], neighbours[n] = takeOne(ctx, source, fleet, ids[n], options)
			}
		})
	}
	for n := range ids {
		next <- n
	}
	close(next)
	group.Wait()
	if err := ctx.Err(); err != nil {
		return document, fmt.Errorf("taking the inventory: %w", err)
	}
	compareNetworks(entries, neighbours, options)
	document.Clusters = append(document.Clusters, entries...)
	finding.Sort(document.Findings)
	return document, nil
}

// takeOne loads one cluster, checks it and lets it go again: only the entry and two numbers stay.
func takeOne(ctx context.Context, source legacy.Source, fleet *legacy.Fleet, id string, options InventoryOptions) (entry Entry, neighbour Neighbour) {
	defer func() {
		if problem := recover(); problem != nil {
			entry, neighbour = unknown(id, "the program failed on this cluster"), Neighbour{ID: id}
		}
	}()
	cluster, err := source.Load(ctx, id)
	if err == nil && cluster == nil {
		err = errors.New("the source returned nothing")
	}
	if err != nil {
		return unknown(id, "could not be read: "+err.Error()), Neighbour{ID: id}
	}
	entry = describe(cluster)
	entry.ID = id

	facts := Facts{Cluster: cluster, Fleet: fleet, Now: options.Now, Source: source.Describe(), Tool: options.Tool}
	var accepted []Accepted
	if options.Accept != nil {
		accepted = options.Accept(id)
	}
	registry := pictureOnly(Registry())
	report, err := run(ctx, registry, facts, Options{Accept: knownWaivers(accepted)})
	if err != nil {
		return unknown(id, "could not be checked: "+err.Error()), DescribeNeighbour(cluster)
	}
	entry.State = StateReady
	for n, result := range report.Results {
		switch result.Outcome {
		case Block, Decide, Error:
			entry.State = StateNeedsWork
			entry.Blockers = append(entry.Blockers, Reason{ID: result.ID, Text: registry[n].Short})
		case Pass, Warn, Skip:
		}
	}
	if options.State != nil {
		if state, ok := options.State(id); ok {
			entry.State = state
		}
	}
	return entry, DescribeNeighbour(cluster)
}

// pictureOnly keeps the checks an inventory runs. Their prerequisites are among them; a test says so.
func pictureOnly(registry []Check) []Check {
	return slices.DeleteFunc(slices.Clone(registry), func(check Check) bool { return check.Beyond })
}

// knownWaivers drops waivers of checks an inventory does not run: a playbook is written for the whole list.
func knownWaivers(accepted []Accepted) []Accepted {
	beyond := map[string]bool{}
	for _, check := range Registry() {
		beyond[check.ID] = check.Beyond
	}
	return slices.DeleteFunc(slices.Clone(accepted), func(waiver Accepted) bool { return beyond[waiver.ID] })
}

func unknown(id, why string) Entry {
	return Entry{ID: id, State: StateUnknown, Blockers: []Reason{{ID: FindingUnreadable, Text: why}}}
}

// describe fills the columns of an entry from the picture.
func describe(cluster *legacy.Cluster) Entry {
	seen := &view{Facts: Facts{Cluster: cluster}, cluster: cluster}
	entry := Entry{ID: cluster.ID, Organization: cluster.Organization, Blockers: []Reason{}, State: StateUnknown}
	if cluster.ClusterConfig != nil {
		entry.Name = cluster.ClusterConfig.Object.Spec.Guest.Name
	}
	if cluster.Config != nil {
		seen.config = &cluster.Config.Object
		entry.Release = seen.release()
		entry.Operator = seen.config.Labels[labelOperator]
		entry.EtcdStorage = storage(seen)
	}
	entry.Kubernetes, entry.Etcd = seen.running("kubernetes"), seen.running("etcd")
	entry.Calico, entry.OS = seen.running("calico"), seen.running("containerlinux")

	var memory, disk int64
	for _, node := range cluster.Nodes {
		if node.Role == legacy.Master {
			entry.Masters++
		} else {
			entry.Workers++
		}
		if node.Sizing != nil {
			entry.CPU += node.Sizing.CPUs
			entry.HostVolumes += len(node.Sizing.HostVolumes)
			memory += quantity(node.Sizing.Memory)
		}
		if node.Pod != nil {
			entry.VMs++
			disk += disks(node)
		}
	}
	entry.MemoryGiB, entry.DiskGiB = gibibytes(memory), gibibytes(disk)
	return entry
}

// disks adds up the sizes of a VM's own disks, which its pod's environment names.
func disks(node legacy.Node) int64 {
	var sum int64
	for _, container := range node.Pod.Object.Spec.Containers {
		if container.Name != containerVM {
			continue
		}
		for _, variable := range container.Env {
			switch variable.Name {
			case "DISK_OS", "DISK_DOCKER", "DISK_KUBELET":
				sum += quantity(variable.Value)
			}
		}
	}
	return sum
}

func quantity(text string) int64 {
	parsed, err := resource.ParseQuantity(text)
	if err != nil {
		return 0
	}
	return parsed.Value()
}

// gibibytes rounds to a tenth: the numbers are for people who compare clusters.
func gibibytes(bytes int64) float64 {
	return float64((bytes*10+(1<<29))>>30) / 10
}

// compareNetworks adds what only shows with all clusters at hand: two of them on one network.
func compareNetworks(entries []Entry, neighbours []Neighbour, options InventoryOptions) {
	const id = "CHK-NET-003"
	for n := range entries {
		if entries[n].State == StateUnknown || neighbours[n].VNI <= 0 || accepts(options, entries[n].ID, id) {
			continue
		}
		for m, other := range neighbours {
			if m == n || other.VNI <= 0 {
				continue
			}
			if distance := neighbours[n].VNI - other.VNI; distance == 0 || portsClash(distance) {
				entries[n].Blockers = append(entries[n].Blockers, Reason{ID: id, Text: "network collision with " + entries[m].ID})
				if entries[n].State == StateReady {
					entries[n].State = StateNeedsWork
				}
			}
		}
	}
}

// accepts tells whether a waiver for the check is in force.
func accepts(options InventoryOptions, cluster, id string) bool {
	if options.Accept == nil {
		return false
	}
	return slices.ContainsFunc(options.Accept(cluster), func(waiver Accepted) bool {
		return waiver.ID == id && waiver.Reason != "" && (waiver.Until == nil || options.Now.Before(*waiver.Until))
	})
}
