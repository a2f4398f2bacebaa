package report_test

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

const apiVersion = "migration.giantswarm.io/v1alpha1"

func madeAt() time.Time { return time.Date(2026, time.November, 21, 7, 12, 0, 0, time.UTC) }

func digest(n int) string {
	return "sha256:" + strings.Repeat(fmt.Sprintf("%02x9c1ef08ad3", n%256), 6)[:64]
}

// planOfAl9qy is the plan of a small cluster as the real one is: values from the legacy objects of al9qy.
func planOfAl9qy() *plan.Plan {
	machines := []struct{ id, node, role string }{
		{"p1l6x", "master-p1l6x-65dc9fb687-gsq6l", "master"},
		{"k3m9a", "worker-k3m9a-59dc7cfd98-7lq6r", "worker"},
		{"z7t2c", "worker-z7t2c-5b67fdf895-lqshc", "worker"},
		{"v5n0e", "worker-v5n0e-6c95768f96-2d59g", "worker"},
	}
	p := &plan.Plan{
		APIVersion: apiVersion,
		Kind:       "Plan",
		Metadata:   plan.Metadata{ID: "01JD3KQ7M2", CreatedAt: madeAt(), ValidUntil: madeAt().Add(24 * time.Hour), Tool: "migrate 0.1.0"},
		Cluster: plan.Cluster{
			ID: "al9qy", Organization: "acme", Name: "Acme production", Namespace: "org-acme", Release: "16.2.1",
			Kubernetes: "v1.21.5", TargetKubernetes: "v1.22.17", Masters: 1, Workers: 3, APIDomain: "api.al9qy.k8s.anubis.example.test",
		},
		Status: plan.Status{Complete: true, HasChanges: true, BlockedBy: []string{"CHK-VM-007", "TRN-DOCKER-001", "TRN-DOCKER-002"}},
		Basis: plan.Basis{
			Digest: digest(1), Source: "live https://mc.anubis.example.test:6443", Compared: "server-side dry run",
			Observed: []plan.Observed{
				{Ref: "KVMConfig/default/al9qy", UID: "4885bdea-c577-4a83-a122-7c6dbded7e14", ResourceVersion: "1216", Digest: digest(2)},
				{Ref: "KVMClusterConfig/default/al9qy-kvm-cluster-config", UID: "6f70a776-0466-47ea-96eb-a17a218f2ba3", ResourceVersion: "479", Digest: digest(3)},
				{Ref: "Release/v16.2.1", UID: "488230b1-2147-4071-87c4-2d0d376a0d0c", ResourceVersion: "371", Digest: digest(4)},
			},
		},
		Phases: []plan.Phase{
			{
				Name: "fence", Title: "Silence the old controllers", Effect: "Nothing changes for workloads; the old controllers leave this cluster alone from now on.",
				Reversible: true, Undo: "Put the recorded values back.",
				Steps: []plan.Step{
					{ID: "fence/kvmconfig", Action: plan.Change, Subject: "KVMConfig/default/al9qy", Title: "pause the KVM operator"},
					{ID: "fence/certconfigs", Action: plan.Change, Subject: "CertConfig/default", Title: "pause the certificate operator", Count: 10},
				},
			},
			{
				Name: "translate", Title: "Describe the cluster anew", Effect: "New objects appear beside the old ones, paused; the running cluster is not touched.",
				Reversible: true, Undo: "Delete what carries our label.",
				Steps: []plan.Step{{ID: "translate/apply", Action: plan.Create, Subject: "Namespace/org-acme", Title: "apply all objects", Requires: []string{"fence/kvmconfig"}}},
			},
			{
				Name: "adopt", Title: "Take over the running machines", Effect: "Machines and etcd keep running; no restart, which the run proves afterwards.",
				Reversible: true, Undo: "Give the machines back to their Deployments; the proof is repeated.",
			},
			{
				Name: "control-plane", Title: "Replace the control plane", Effect: "A new control plane joins the old one; the API stays reachable under its name.",
				Disruptive: true, Reversible: true, PointOfNoReturn: "the old etcd member has left; the legacy control plane cannot come back",
				Undo: "Before the old member leaves: the new one goes and the old manifests come back.", Gate: "control-plane-window",
			},
			{
				Name: "workers", Title: "Replace the workers", Effect: "One worker after another: the new one is ready before the old one is drained; disruption budgets are respected.",
				Disruptive: true, Reversible: true, Undo: "Stop between two nodes; replaced nodes stay replaced.",
			},
			{
				Name: "finalize", Title: "Remove the old objects", Effect: "Nothing that runs is touched; the legacy objects go.",
				PointOfNoReturn: "legacy objects and their finalizers are gone", Gate: "customer-sign-off",
			},
		},
	}
	add := func(o plan.Object) { p.Changes = append(p.Changes, o) }
	const config = "KVMConfig/default/al9qy"
	add(plan.Object{Action: plan.Change, Object: config, Phase: "fence", Note: "the operator leaves paused objects alone since 3.14", Fields: []plan.FieldChange{
		{Path: `metadata.annotations["operatorkit.giantswarm.io/paused"]`, After: "true", Rule: "fence-pause"},
	}})
	add(plan.Object{Action: plan.Create, Object: "Cluster/org-acme/al9qy", Phase: "translate", Fields: []plan.FieldChange{
		{Path: "spec.paused", After: true, Rule: "cluster-paused"},
		{Path: "spec.clusterNetwork.pods.cidrBlocks", After: []any{"192.168.0.0/16"}, From: []string{"spec.cluster.calico.subnet", "spec.cluster.calico.cidr"}, Rule: "net-pods"},
		{Path: "spec.clusterNetwork.services.cidrBlocks", After: []any{"172.31.0.0/16"}, From: []string{"spec.cluster.kubernetes.api.clusterIPRange"}, Rule: "net-services"},
		{Path: "spec.clusterNetwork.serviceDomain", After: "cluster.local", From: []string{"spec.cluster.kubernetes.domain"}, Rule: "net-domain"},
		{Path: "spec.controlPlaneEndpoint.host", After: "api.al9qy.k8s.anubis.example.test", From: []string{"spec.cluster.kubernetes.api.domain"}, Rule: "api-host"},
		{Path: "spec.controlPlaneEndpoint.port", After: 443, From: []string{"spec.cluster.kubernetes.api.securePort"}, Rule: "api-port"},
		{Path: "spec.infrastructureRef", After: map[string]any{"kind": "KVMCluster", "name": "al9qy", "apiGroup": "infrastructure.cluster.x-k8s.io"}, Rule: "infra-ref"},
	}})
	add(plan.Object{Action: plan.Create, Object: "KVMCluster/org-acme/al9qy", Phase: "translate", Fields: []plan.FieldChange{
		{Path: "spec.controlPlaneEndpoint.host", After: "api.al9qy.k8s.anubis.example.test", From: []string{"spec.cluster.kubernetes.api.domain"}, Rule: "api-host"},
	}})
	add(plan.Object{Action: plan.Create, Object: "KubeadmControlPlane/org-acme/al9qy", Phase: "translate", Fields: []plan.FieldChange{
		{Path: "spec.version", After: "v1.22.17", From: []string{"Release.spec.components[kubernetes].version"}, Rule: "kcp-version"},
		{Path: "spec.replicas", After: 1, From: []string{"spec.cluster.masters"}, Rule: "kcp-replicas"},
		{Path: "spec.kubeadmConfigSpec.clusterConfiguration.apiServer.extraArgs[etcd-prefix]", After: "giantswarm.io", From: []string{"spec.cluster.etcd.prefix"}, Rule: "etcd-prefix"},
	}})
	for _, s := range []string{"ca", "etcd", "sa", "proxy", "kubeconfig", "encryption"} {
		add(plan.Object{Action: plan.Create, Object: "Secret/org-acme/al9qy-" + s, Phase: "translate", Secret: true, Fields: []plan.FieldChange{
			{Path: "data[tls.crt]", After: "hmac-sha256:5be1c0a77d10", From: []string{"Secret/default/al9qy-api.data.ca"}, Rule: "pki"},
			{Path: "data[tls.key]", After: "hmac-sha256:91ff28e0b3c4", Rule: "pki"},
		}})
	}
	for i, m := range machines {
		if m.role == "worker" {
			add(plan.Object{Action: plan.Create, Object: "KVMMachineTemplate/org-acme/al9qy-" + m.id, Phase: "translate", Fields: []plan.FieldChange{
				{Path: "spec.template.spec.resources.memory", After: []any{"16G", "24G", "8Gi"}[i-1], From: []string{fmt.Sprintf("spec.kvm.workers[%d].memory", i-1)}, Rule: "vm-memory"},
				{Path: "spec.template.spec.resources.cpu", After: []any{4, 8, 4}[i-1], From: []string{fmt.Sprintf("spec.kvm.workers[%d].cpus", i-1)}, Rule: "vm-cpus"},
			}})
			add(plan.Object{Action: plan.Create, Object: "MachineDeployment/org-acme/al9qy-" + m.id, Phase: "translate"})
		}
	}
	for i, m := range machines {
		add(plan.Object{Action: plan.Adopt, Object: "Machine/org-acme/al9qy-" + m.id, Phase: "adopt", Fields: []plan.FieldChange{
			{Path: "spec.providerID", After: "kvm://al9qy/" + m.node, Rule: "provider-id"},
			{Path: "nodeIndex", After: i + 1, From: []string{fmt.Sprintf("status.kvm.nodeIndexes[%s]", m.id)}, Rule: "iscsi"},
		}})
		p.Phases[2].Steps = append(p.Phases[2].Steps, plan.Step{ID: "adopt/" + m.id, Action: plan.Adopt, Subject: "Node/" + m.node, Title: "take over without a restart"})
		phase, at := "workers", 4
		if m.role == "master" {
			phase, at = "control-plane", 3
		}
		add(plan.Object{Action: plan.Replace, Object: "Node/" + m.node, Phase: phase})
		p.Phases[at].Steps = append(p.Phases[at].Steps, plan.Step{ID: phase + "/" + m.id, Action: plan.Replace, Subject: "Node/" + m.node, Title: "drain and replace"})
	}
	for _, name := range []string{"api", "etcd", "calico", "node-operator", "prometheus", "service-account", "worker", "app-operator-api", "flanneld-etcd-client", "internal-api"} {
		add(plan.Object{Action: plan.Remove, Object: "CertConfig/default/al9qy-" + name, Phase: "finalize"})
	}
	add(plan.Object{Action: plan.Remove, Object: config, Phase: "finalize", Note: "last: its absence lets the certificate operator destroy the PKI"})
	add(plan.Object{Action: plan.Remove, Object: "Namespace/al9qy", Phase: "finalize"})
	p.Findings = []finding.Finding{
		{
			ID: "TRN-DOCKER-001", Severity: finding.Decide, Object: config, Path: "spec.cluster.docker.daemon.cidr",
			Message: "The Docker bridge network has no equivalent with containerd.", Hint: "migrate explain TRN-DOCKER-001",
			Choices: []finding.Choice{
				{Value: "drop", Effect: "The setting is not carried over; pods never used this network."},
				{Value: "reserve", Effect: "The range stays reserved, so that no pod or service gets an address from it."},
			},
		},
		{
			ID: "TRN-DOCKER-002", Severity: finding.Decide, Object: config, Path: "spec.kvm.workers[0].dockerVolumeSizeGB",
			Message: "The Docker volume of 100 GB becomes the containerd volume; images are pulled again.",
			Choices: []finding.Choice{
				{Value: "same-size", Effect: "The new volume has 100 GB."},
				{Value: "default", Effect: "The new volume has the default of 50 GB."},
			},
		},
		{
			ID: "TRN-OIDC-001", Severity: finding.Decide, Object: config, Path: "spec.cluster.kubernetes.api.oidc",
			Message: "The OIDC issuer is not reachable from here, so it was not verified.",
			Choices: []finding.Choice{{Value: "keep", Effect: "The issuer is carried over unchecked."}},
			Answer:  &finding.Answer{Value: "keep", Reason: "verified by hand, CHG-4711", By: "ops@example.test"},
		},
		{
			ID: "TRN-DISK-001", Severity: finding.Warn, Object: config, Path: "spec.kvm.workers[2].disk",
			Message: "40.5 GB is not a whole number; the new disk has 41 GB.", Hint: "Nothing to do.",
		},
		{ID: "LEG-REL-001", Severity: finding.Info, Object: "Release/v16.2.1", Message: "Release 16.2.1 ships Kubernetes 1.21.5 and etcd 3.5.0."},
	}
	p.Checks = checksOfAl9qy()
	p.Accepted = []check.Accepted{{ID: "CHK-CP-001", Reason: "agreed with the customer, CHG-4711"}}
	values := []plan.Field{
		{Path: "spec.cluster.calico.subnet", Value: "192.168.0.0", Disposition: plan.Derived, Targets: []string{"Cluster spec.clusterNetwork.pods.cidrBlocks"}, Rule: "net-pods"},
		{Path: "spec.cluster.calico.cidr", Value: "16", Disposition: plan.Derived, Targets: []string{"Cluster spec.clusterNetwork.pods.cidrBlocks"}, Rule: "net-pods"},
		{Path: "spec.cluster.calico.mtu", Value: "1430", Disposition: plan.Dropped, Reason: "the pod network is not reinstalled; its configuration stays in the cluster", Rule: "net-mtu"},
		{Path: "spec.cluster.docker.daemon.cidr", Value: "172.17.0.1/16", Disposition: plan.NeedsDecision, Reason: "no equivalent with containerd", Rule: "docker-cidr"},
		{Path: "spec.kvm.workers[0].dockerVolumeSizeGB", Value: "100", Disposition: plan.NeedsDecision, Reason: "images are pulled again", Rule: "docker-volume"},
		{Path: "spec.cluster.etcd.prefix", Value: "giantswarm.io", Disposition: plan.Mapped, Targets: []string{"KubeadmControlPlane spec.kubeadmConfigSpec.clusterConfiguration.apiServer.extraArgs[etcd-prefix]"}, Rule: "etcd-prefix"},
		{Path: "spec.cluster.kubernetes.api.domain", Value: "api.al9qy.k8s.anubis.example.test", Disposition: plan.Mapped, Targets: []string{"Cluster spec.controlPlaneEndpoint.host", "KVMCluster spec.controlPlaneEndpoint.host"}, Rule: "api-host"},
		{Path: "spec.cluster.kubernetes.api.securePort", Value: "443", Disposition: plan.Mapped, Targets: []string{"Cluster spec.controlPlaneEndpoint.port"}, Rule: "api-port"},
		{Path: "spec.cluster.kubernetes.api.clusterIPRange", Value: "172.31.0.0/16", Disposition: plan.Mapped, Targets: []string{"Cluster spec.clusterNetwork.services.cidrBlocks"}, Rule: "net-services"},
		{Path: "spec.cluster.kubernetes.cloudProvider", Value: "", Disposition: plan.Dropped, Reason: "always empty on this provider", Rule: "cloud-provider"},
	}
	for i, memory := range []string{"16G", "24G", "8Gi"} {
		values = append(values,
			plan.Field{Path: fmt.Sprintf("spec.kvm.workers[%d].memory", i), Value: memory, Disposition: plan.Mapped, Targets: []string{"KVMMachineTemplate spec.template.spec.resources.memory"}, Rule: "vm-memory"},
			plan.Field{Path: fmt.Sprintf("spec.kvm.workers[%d].cpus", i), Value: []string{"4", "8", "4"}[i], Disposition: plan.Mapped, Targets: []string{"KVMMachineTemplate spec.template.spec.resources.cpu"}, Rule: "vm-cpus"})
	}
	for _, f := range values {
		f.Source = config
		p.Fields = append(p.Fields, f)
	}
	count(p)
	return p
}

// count fills the summary from the lists, as the planner does.
func count(p *plan.Plan) {
	p.Summary = plan.Summary{}
	for _, c := range p.Changes {
		switch c.Action {
		case plan.Create:
			p.Summary.Create++
		case plan.Adopt:
			p.Summary.Adopt++
		case plan.Change:
			p.Summary.Change++
		case plan.Replace:
			p.Summary.Replace++
		case plan.Remove:
			p.Summary.Remove++
		case plan.Keep:
		}
	}
	for _, f := range p.Findings {
		if f.Open() {
			p.Summary.Decide++
		}
	}
	for _, f := range p.Fields {
		p.Summary.Translation.Read++
		switch f.Disposition {
		case plan.Mapped:
			p.Summary.Translation.Mapped++
		case plan.Derived:
			p.Summary.Translation.Derived++
		case plan.Dropped:
			p.Summary.Translation.Dropped++
		case plan.NeedsDecision:
			p.Summary.Translation.Decide++
		}
	}
}

func checksOfAl9qy() []check.Result {
	return []check.Result{
		{ID: "CHK-ETCD-001", Category: "etcd", Title: "etcd has a known storage mode", Outcome: check.Pass, Detail: "persistentVolume, claim pvc-etcd-al9qy-p1l6x"},
		{ID: "CHK-ETCD-004", Category: "etcd", Title: "database is below 70 % of its quota", Outcome: check.Warn, Detail: "71 % (1.46 of 2.05 GiB). A defragmentation before the window makes the snapshot smaller.", Hint: "migrate explain CHK-ETCD-004"},
		{ID: "CHK-ETCD-005", Category: "etcd", Title: "etcd answers within 100 ms", Outcome: check.Skip, Detail: "no connection to the cluster: the plan is made from a snapshot"},
		{
			ID: "CHK-CP-001", Category: "control plane", Title: "more than one master, or single-master accepted", Outcome: check.Block, Detail: "1 master: the API is down for a moment while it is replaced.",
			Hint: `add masters, or --accept CHK-CP-001="REASON"`, Accepted: &check.Accepted{ID: "CHK-CP-001", Reason: "agreed with the customer, CHG-4711"},
		},
		{ID: "CHK-CP-002", Category: "control plane", Title: "the API server's certificate matches the CA", Outcome: check.Pass},
		{
			ID: "CHK-VM-007", Category: "machines", Title: "no host volumes on nodes to be replaced", Outcome: check.Block, Detail: "1 worker has 2 host volumes.",
			Items: []string{"worker k3m9a: mountTag objectstore, /srv/objectstore", "worker k3m9a: mountTag pgdata, /var/lib/kvm-host-volumes/pgdata"},
			Hint:  "pin the replacement to the same host in the playbook",
		},
		{ID: "CHK-VM-008", Category: "machines", Title: "every machine answers", Outcome: check.Error, Detail: "the API of the workload cluster did not answer within 5 s"},
		{ID: "CHK-NET-002", Category: "network", Title: "the pod network has one mode", Outcome: check.Decide, Detail: "node CIDRs were never allocated", Hint: "migrate explain CHK-NET-002", Docs: "docs/checks.md#chk-net-002"},
	}
}

func reportOfAl9qy() *check.Report {
	p := planOfAl9qy()
	r := &check.Report{
		APIVersion: apiVersion, Kind: "CheckReport", Metadata: check.Metadata{CreatedAt: madeAt(), Tool: "migrate 0.1.0"},
		Cluster: "al9qy", Organization: "acme", Source: "live https://mc.anubis.example.test:6443", Outcome: check.Error,
		Results: checksOfAl9qy(), Findings: p.Findings, Accepted: p.Accepted,
		Summary: check.Summary{Pass: 2, Warn: 1, Block: 2, Decide: 1, Skip: 1, Error: 1},
	}
	until := time.Date(2026, time.December, 31, 22, 59, 0, 0, time.UTC)
	r.Accepted = []check.Accepted{{ID: "CHK-CP-001", Reason: "agreed with the customer, CHG-4711", Until: &until}}
	return r
}

func inventoryOfAnubis() *check.Inventory {
	return &check.Inventory{
		APIVersion: apiVersion, Kind: "Inventory", Metadata: check.Metadata{CreatedAt: madeAt(), Tool: "migrate 0.1.0"}, Source: "anubis",
		Clusters: []check.Entry{
			{
				ID: "al9qy", Organization: "acme", Name: "Acme production", Kubernetes: "v1.21.5", Release: "16.2.1", Operator: "3.18.6", Etcd: "3.5.0", Calico: "3.20.1", OS: "Flatcar 2905.2.3",
				Masters: 1, Workers: 3, VMs: 4, CPU: 20, MemoryGiB: 54.5, DiskGiB: 340.5, EtcdStorage: "persistentVolume", HostVolumes: 2, State: check.StateNeedsWork,
				Blockers: []check.Reason{{ID: "CHK-CP-001", Text: "one master"}, {ID: "CHK-VM-007", Text: "host volumes"}},
			},
			{
				ID: "b4n9x", Organization: "globex", Name: "Globex", Kubernetes: "v1.21.5", Release: "16.2.1", Operator: "3.18.6", Etcd: "3.5.0", Calico: "3.20.1", OS: "Flatcar 2905.2.3",
				Masters: 1, Workers: 12, VMs: 13, CPU: 52, MemoryGiB: 208, DiskGiB: 720, EtcdStorage: "hostPath", State: check.StateReady, Blockers: []check.Reason{},
			},
			{
				ID: "d0v8m", Organization: "umbra", Kubernetes: "v1.20.9", Release: "14.1.2", Operator: "3.14.0", Masters: 3, Workers: 6, VMs: 8, State: check.StateMigrating, Blockers: []check.Reason{},
			},
		},
		Records:  []string{"q7w2k (StorageConfig giantswarm/cluster-service)"},
		Findings: []finding.Finding{{ID: "LEG-STO-001", Severity: finding.Warn, Object: "StorageConfig/giantswarm/cluster-service", Message: "q7w2k has records but no cluster.", Hint: "Ask whether it was deleted by hand."}},
	}
}

// planOf15Nodes is as large as the plans of bigger customers are: 3 masters, 12 workers, some hundred fields.
func planOf15Nodes() *plan.Plan {
	p := planOfAl9qy()
	p.Cluster.ID, p.Cluster.Name, p.Cluster.Masters, p.Cluster.Workers = "b4n9x", "Globex", 3, 12
	for i := range 11 {
		id := fmt.Sprintf("n%02dq", i)
		node := fmt.Sprintf("worker-%s-5f7d9c8b6d-x%02dzk", id, i)
		p.Phases[2].Steps = append(p.Phases[2].Steps, plan.Step{ID: "adopt/" + id, Action: plan.Adopt, Subject: "Node/" + node, Title: "take over without a restart"})
		p.Phases[4].Steps = append(p.Phases[4].Steps, plan.Step{ID: "workers/" + id, Action: plan.Replace, Subject: "Node/" + node, Title: "drain and replace", Requires: []string{"adopt/" + id}})
		p.Changes = append(p.Changes,
			plan.Object{Action: plan.Create, Object: "MachineDeployment/org-acme/b4n9x-" + id, Phase: "translate"},
			plan.Object{Action: plan.Adopt, Object: "Machine/org-acme/b4n9x-" + id, Phase: "adopt"},
			plan.Object{Action: plan.Replace, Object: "Node/" + node, Phase: "workers"})
		for _, leaf := range []string{"memory", "cpus", "disk", "dockerVolumeSizeGB", "hostVolumes", "id", "labels", "taints", "zone", "iscsi", "mac", "storageClass", "image", "ntp", "dns", "sshKey"} {
			p.Fields = append(p.Fields, plan.Field{
				Source: "KVMConfig/default/b4n9x", Path: fmt.Sprintf("spec.kvm.workers[%d].%s", i+3, leaf), Value: strconv.Itoa(i * 7), Disposition: plan.Mapped,
				Targets: []string{"KVMMachineTemplate spec.template.spec." + leaf}, Rule: "vm-" + leaf,
			})
		}
	}
	for i := range 3 {
		p.Phases[i+2].Estimate = &plan.Estimate{P50: fmt.Sprintf("%dm0s", 12*(i+1)), P90: fmt.Sprintf("%dm30s", 25*(i+1)), Runs: 4}
	}
	p.Schedule = scheduleOf15Nodes()
	p.Drift = []plan.Drift{{What: "observed", Subject: "KVMConfig/default/b4n9x spec.kvm.workers[3].memory", Before: "8G", After: "16G", Used: true}}
	p.Checks, p.Findings = p.Checks[:2], p.Findings[3:]
	p.Status = plan.Status{Complete: true, Applyable: true, HasChanges: true, BlockedBy: []string{}}
	count(p)
	return p
}

// scheduleOf15Nodes needs three nights, of which the last is one of clocks that change.
func scheduleOf15Nodes() *plan.Schedule {
	at := func(day, hour, minute int) time.Time {
		return time.Date(2027, time.March, day, hour, minute, 0, 0, time.UTC)
	}
	return &plan.Schedule{
		Playbook: "weekend", TimeZone: "Europe/Berlin", Runs: 4, Fits: true, UsualNights: 2, EndsAt: new(at(27, 21, 23)),
		Values: []plan.Value{
			{Path: "metadata.name", Value: "weekend", Origin: "weekend.yaml:4"},
			{Path: "spec.windows.timeZone", Value: "Europe/Berlin", Origin: "weekend.yaml:7"},
			{Path: "spec.windows.cutoff", Value: "45m0s", Origin: "--set"},
			{Path: "spec.workers.surge", Value: "1", Origin: "built-in:7"},
			{Path: "spec.failure.retries", Value: "0", Origin: "built-in"},
		},
		Worker:   plan.Estimate{P50: "12m0s", P90: "31m0s", Runs: 9},
		Reserves: &plan.Reserves{Worker: "45m0s", ControlPlane: "2h0m0s", NoReturn: "30m0s"},
		Nights: []plan.Night{
			{Start: at(20, 21, 0), End: at(21, 3, 0), Names: []string{"saturday"}, LastNode: new(at(21, 2, 15)), Work: []plan.Work{
				{Phase: plan.PhaseControlPlane, From: at(20, 21, 0), To: at(20, 22, 14)},
				{Phase: plan.PhaseWorkers, From: at(20, 22, 14), To: at(21, 2, 40), Workers: []string{"n00q", "n01q", "n02q"}},
			}},
			{Start: at(21, 21, 0), End: at(22, 3, 0), Names: []string{"sunday"}, LastNode: new(at(22, 2, 15)), Work: []plan.Work{
				{Phase: plan.PhaseWorkers, From: at(21, 21, 0), To: at(21, 22, 2), Workers: []string{"n03q", "n04q"}},
			}},
			{Start: at(27, 21, 0), End: at(28, 3, 0), Names: []string{"saturday"}, Work: []plan.Work{{Phase: plan.PhaseFinalize, From: at(27, 21, 0), To: at(27, 21, 23)}}},
		},
		Outside: []plan.Work{{Phase: plan.PhaseFence, From: at(19, 11, 0), To: at(19, 11, 4)}, {Phase: plan.PhaseAdopt, From: at(19, 11, 4), To: at(19, 11, 14)}},
		Approvals: []plan.Approval{
			{Gate: "control-plane", Before: plan.PhaseControlPlane, Who: "Globex change board", By: "ada@anubis", Reason: "CHG-4711"},
			{Gate: "point-of-no-return", Before: plan.PhaseControlPlane, NotBefore: new(at(20, 19, 0)), NeededAt: new(at(20, 22, 0))},
			{Gate: "finalize", Before: plan.PhaseFinalize, Who: "Globex change board", By: "ada@anubis", Reason: "CHG-4712", Until: new(at(27, 12, 0)), NeededAt: new(at(27, 21, 0))},
		},
	}
}

// planWithoutChanges is the plan of a cluster that is already as planned.
func planWithoutChanges() *plan.Plan {
	p := planOfAl9qy()
	p.Status = plan.Status{Complete: true, BlockedBy: []string{}}
	p.Changes, p.Phases, p.Findings, p.Fields, p.Checks, p.Accepted = []plan.Object{}, []plan.Phase{}, []finding.Finding{}, []plan.Field{}, nil, nil
	count(p)
	return p
}
