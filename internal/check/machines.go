package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

const (
	// restartAge is how recent a restart of a VM must be to count as a sign of trouble.
	restartAge = 24 * time.Hour
	// hostLabelRole selects the hosts a VM of that role may run on.
	hostLabelRole = "role"
	// livenessPatience is how long the legacy health check may fail before the VM is re-created.
	livenessPatience = 140 * time.Second
)

func onePod(v *view) verdict {
	var items []string
	known := map[string]bool{}
	for _, node := range v.cluster.Nodes {
		known[node.ID] = true
		if node.Deployment == nil {
			items = append(items, name(node)+" has no Deployment")
		}
		switch pods := v.podsOf[node.ID]; {
		case len(pods) == 0:
			items = append(items, name(node)+" has no pod")
		case len(pods) > 1:
			items = append(items, fmt.Sprintf("%s has %d pods", name(node), len(pods)))
		}
	}
	for id, pods := range v.podsOf {
		if !known[id] {
			for _, pod := range pods {
				items = append(items, "Pod "+pod.Name+" is of a node the KVMConfig does not know")
			}
		}
	}
	for _, document := range v.cluster.Deployments {
		if id := document.Object.Labels[labelNode]; id != "" && !known[id] {
			items = append(items, document.Ref.String()+" is of a node the KVMConfig does not know")
		}
	}
	if len(items) > 0 {
		return failed(items, "nodes, Deployments and pods do not match one to one")
	}
	return held("%s", plural(len(v.cluster.Nodes), "VM", "VMs"))
}

func vmsRunning(v *view) verdict {
	var items, restarts []string
	for _, node := range v.cluster.Nodes {
		if node.Pod == nil {
			continue
		}
		pod := &node.Pod.Object
		if pod.Status.Phase != corev1.PodRunning {
			items = append(items, fmt.Sprintf("%s is %s", node.Pod.Ref, cmp.Or(string(pod.Status.Phase), "of unknown phase")))
			continue
		}
		waiting := 0
		for _, container := range pod.Status.ContainerStatuses {
			if !container.Ready {
				waiting++
			}
			if container.Name == containerVM && container.RestartCount > 0 {
				restarts = append(restarts, fmt.Sprintf("%s: the VM was re-created %s", node.Pod.Ref, plural(int(container.RestartCount), "time", "times")))
			}
		}
		if waiting > 0 || !podCondition(pod, corev1.ContainersReady, true) {
			items = append(items, fmt.Sprintf("%s has %d containers that are not ready", node.Pod.Ref, waiting))
		}
	}
	if len(items) > 0 {
		return failed(append(items, restarts...), "not every VM is up")
	}
	return held("%d of %d were re-created since their pods started", len(restarts), len(v.cluster.Nodes)).listing(restarts)
}

// podCondition returns whether a condition is True; absent conditions count as the given default.
func podCondition(pod *corev1.Pod, kind corev1.PodConditionType, absent bool) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == kind {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return absent
}

func workersReady(v *view) verdict {
	var items []string
	workers := nodesOf(v, legacy.Worker)
	for _, node := range workers {
		if !podCondition(&node.Pod.Object, conditionNodeReady, false) {
			items = append(items, node.Pod.Ref.String())
		}
	}
	if len(items) > 0 {
		return failed(items, "the operator does not report the Node of %s as ready", plural(len(items), "worker", "workers"))
	}
	return held("%s", plural(len(workers), "worker", "workers"))
}

func noneTerminating(v *view) verdict {
	var items []string
	for _, document := range v.cluster.Pods {
		switch {
		case document.Object.DeletionTimestamp != nil:
			items = append(items, document.Ref.String()+" is terminating")
		case strings.EqualFold(document.Object.Annotations[annotationDrained], "true"):
			items = append(items, document.Ref.String()+" was drained")
		}
	}
	for _, document := range v.cluster.Others {
		if document.Ref.Kind == "DrainerConfig" {
			items = append(items, document.Ref.String()+" asks for a drain")
		}
	}
	if len(items) > 0 {
		return failed(items, "a VM is on its way out")
	}
	return held("no pod is terminating or drained")
}

func finalizersThere(v *view) verdict {
	var items []string
	for _, node := range v.cluster.Nodes {
		if node.Pod != nil && !slices.Contains(node.Pod.Object.Finalizers, finalizerDrainer) {
			items = append(items, node.Pod.Ref.String())
		}
	}
	if len(items) > 0 {
		return failed(items, "%s no drainer finalizer: the operator does not watch it, and deleting it stops the VM at once", plural(len(items), "pod has", "pods have"))
	}
	return held("%s", finalizerDrainer)
}

// setUpTime is how long after its boot a master may still make its add-ons, on a host with hardware virtualization.
const setUpTime = 15 * time.Minute

func mastersSetUp(v *view) verdict {
	var items []string
	for _, node := range v.cluster.Masters() {
		if node.Pod == nil {
			continue
		}
		for _, container := range node.Pod.Object.Status.ContainerStatuses {
			running := container.State.Running
			if container.Name == containerVM && running != nil && v.Now.Sub(running.StartedAt.Time) < setUpTime {
				items = append(items, fmt.Sprintf("%s: the VM was started at %s", node.Pod.Ref, running.StartedAt.UTC().Format(time.RFC3339)))
			}
		}
	}
	if len(items) > 0 {
		return failed(items, "%s less than %s ago", plural(len(items), "master has booted", "masters have booted"), setUpTime)
	}
	return held("no master was started within the last %s", setUpTime)
}

func calmLately(v *view) verdict {
	var items []string
	for _, node := range v.cluster.Nodes {
		if node.Pod == nil {
			continue
		}
		for _, container := range node.Pod.Object.Status.ContainerStatuses {
			if container.Name != containerVM {
				continue
			}
			last := container.LastTerminationState.Terminated
			running := container.State.Running
			switch {
			case last != nil && v.Now.Sub(last.FinishedAt.Time) < restartAge:
				items = append(items, fmt.Sprintf("%s: the VM ended at %s (%s)", node.Pod.Ref, last.FinishedAt.UTC().Format(time.RFC3339), cmp.Or(last.Reason, "no reason given")))
			case container.RestartCount > 0 && running != nil && v.Now.Sub(running.StartedAt.Time) < restartAge:
				items = append(items, fmt.Sprintf("%s: the VM started again at %s", node.Pod.Ref, running.StartedAt.UTC().Format(time.RFC3339)))
			}
		}
		for _, container := range node.Pod.Object.Spec.Containers {
			probe := container.LivenessProbe
			if container.Name != containerVM || probe == nil {
				continue
			}
			if patience := time.Duration(probe.PeriodSeconds*probe.FailureThreshold) * time.Second; patience < livenessPatience {
				items = append(items, fmt.Sprintf("%s: its health check gives up after %s instead of %s", node.Pod.Ref, patience, livenessPatience))
			}
		}
	}
	if len(items) > 0 {
		return failed(items, "VMs were re-created in the last day, or would be sooner than usual")
	}
	return held("a failing health check would re-create one after %s", livenessPatience)
}

// hostVolumes lists the host volumes of a node, as "tag at path".
func hostVolumes(node legacy.Node) []string {
	if node.Sizing == nil {
		return nil
	}
	var volumes []string
	for _, volume := range node.Sizing.HostVolumes {
		volumes = append(volumes, volume.MountTag+" at "+volume.HostPath)
	}
	return volumes
}

func hostVolumesDecided(v *view) verdict {
	var items []string
	for _, node := range v.cluster.Workers() {
		for _, volume := range hostVolumes(node) {
			items = append(items, name(node)+": "+volume)
		}
	}
	if len(items) > 0 {
		return failed(items, "%s: the replacement must land on the same host, so the old VM has to go first", plural(len(items), "host volume", "host volumes"))
	}
	return held("looked at %s", plural(len(v.cluster.Workers()), "worker", "workers"))
}

func hostVolumesPinned(v *view) verdict {
	var items []string
	volumes := 0
	for _, node := range v.cluster.Workers() {
		if node.Sizing == nil {
			continue
		}
		for _, wanted := range node.Sizing.HostVolumes {
			volumes++
			claim := fmt.Sprintf("%s%s-%d-%s", hostVolumeClaimStart, v.cluster.ID, node.Position, wanted.MountTag)
			if problem := claimProblem(v, claim); problem != "" {
				items = append(items, name(node)+": "+problem)
				continue
			}
			if problem := pinProblem(v, node, claim); problem != "" {
				items = append(items, name(node)+": "+problem)
			}
		}
	}
	if len(items) > 0 {
		return failed(items, "host volumes are not where the VMs are")
	}
	if volumes == 0 {
		return held("no node has host volumes")
	}
	return held("%s bound, each on the host of its VM", plural(volumes, "host volume is", "host volumes are"))
}

// pinProblem compares the hosts a bound volume may be used on with the host its VM runs on.
func pinProblem(v *view, node legacy.Node, claim string) string {
	var volume *corev1.PersistentVolume
	for n := range v.cluster.Claims {
		if v.cluster.Claims[n].Object.Name == claim {
			volume = volumeOf(v, v.cluster.Claims[n].Object.Spec.VolumeName)
		}
	}
	pinned := pinnedTo(volume)
	switch {
	case len(pinned) == 0:
		return "PersistentVolume " + volume.Name + " names no host"
	case node.Pod == nil:
		return ""
	}
	host := node.Pod.Object.Spec.NodeName
	if !slices.Contains(pinned, host) && !slices.Contains(pinned, cmp.Or(v.hosts[host].Labels[hostnameLabel], host)) {
		return fmt.Sprintf("PersistentVolume %s is on %s, the VM runs on %s", volume.Name, strings.Join(pinned, ", "), host)
	}
	if known, ok := v.hosts[host]; ok && !known.Schedulable {
		return fmt.Sprintf("host %s is cordoned: a replacement could not land there", host)
	}
	return ""
}

// pinnedTo lists the host names a local volume's node affinity allows.
func pinnedTo(volume *corev1.PersistentVolume) []string {
	if volume == nil || volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
		return nil
	}
	var hosts []string
	for _, term := range volume.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, match := range term.MatchExpressions {
			if match.Key == hostnameLabel && match.Operator == corev1.NodeSelectorOpIn {
				hosts = append(hosts, match.Values...)
			}
		}
	}
	return hosts
}

func initiatorNames(v *view) verdict {
	var items []string
	seen := map[int]string{}
	for _, node := range v.cluster.Nodes {
		switch other := seen[node.Index]; {
		case node.Index <= 0:
			items = append(items, name(node)+" has no index in status.kvm.nodeIndexes")
			continue
		case other != "":
			items = append(items, fmt.Sprintf("%s and %s share index %d", other, name(node), node.Index))
		}
		seen[node.Index] = name(node)
		file := node.Ignition.File(fileInitiator)
		want := fmt.Sprintf("%s%s-%s-%d", initiatorPrefix, v.cluster.ID, node.Role, node.Index)
		if file != nil && !file.Secret && strings.TrimSpace(string(file.Content)) != want {
			items = append(items, name(node)+": the boot configuration has another initiator name")
		}
	}
	if len(items) > 0 {
		return failed(items, "not every VM has a recorded iSCSI name of its own")
	}
	return held("%s, by node index", plural(len(seen), "initiator name", "initiator names"))
}

// request is what a VM's pod asks of a host.
func request(node legacy.Node) Usage {
	var sum Usage
	if node.Pod != nil {
		sum = podRequest(&node.Pod.Object)
	}
	return sum
}

// podRequest adds up what a pod's containers ask for.
func podRequest(pod *corev1.Pod) Usage {
	var sum Usage
	for _, container := range pod.Spec.Containers {
		sum.CPU += container.Resources.Requests.Cpu().MilliValue()
		sum.Memory += container.Resources.Requests.Memory().Value()
	}
	return sum
}

// room lists the hosts that could take one more VM of a role: ready, schedulable, with the role's label, without a VM of this
// cluster, and with enough left of what the VM asks for. The second list says of the others why not.
func room(v *view, role legacy.Role, wanted Usage) (free, taken []string) {
	holding := vmHosts(v)
	for hostName, host := range v.hosts {
		if host.Labels[hostLabelRole] != string(role) {
			continue
		}
		used := v.Usage[hostName]
		switch {
		case !host.Ready:
			taken = append(taken, hostName+" is not ready")
		case !host.Schedulable:
			taken = append(taken, hostName+" is cordoned")
		case len(holding[hostName]) > 0:
			taken = append(taken, hostName+" holds "+name(holding[hostName][0]))
		case host.CPU > 0 && host.CPU*1000-used.CPU < wanted.CPU:
			taken = append(taken, hostName+" has too little CPU")
		case host.Memory > 0 && host.Memory-used.Memory < wanted.Memory:
			taken = append(taken, hostName+" has too little memory")
		default:
			free = append(free, hostName)
		}
	}
	slices.Sort(free)
	slices.Sort(taken)
	return free, taken
}

func surgeRoom(role legacy.Role) func(*view) verdict {
	return func(v *view) verdict {
		nodes := nodesOf(v, role)
		if len(nodes) == 0 {
			return held("the cluster has no %s to replace", role)
		}
		// Those leave their hosts to their replacements.
		nodes = slices.DeleteFunc(nodes, func(n legacy.Node) bool { return role == legacy.Worker && goesFirst(v, n) })
		if len(nodes) == 0 {
			return held("every worker goes before its replacement comes")
		}
		var wanted Usage
		for _, node := range nodes {
			ask := request(node)
			wanted.CPU, wanted.Memory = max(wanted.CPU, ask.CPU), max(wanted.Memory, ask.Memory)
		}
		free, taken := room(v, role, wanted)
		size := fmt.Sprintf("%.1f cores and %.1f GiB", float64(wanted.CPU)/1000, float64(wanted.Memory)/(1<<30))
		if len(free) == 0 {
			return failed(taken, "no host with role=%s can take one more VM of %s beside the running ones", role, size)
		}
		basis := "by what the pods of each host ask for"
		if v.Usage == nil {
			basis = "by the hosts' size only, other pods are not known"
		}
		room := fmt.Sprintf("%s for one more VM of %s", plural(len(free), "host has room", "hosts have room"), size)
		// The first new control plane comes beside the old one, whose host is free for the others.
		if others := v.ControlPlanes - 1; role == legacy.Master && len(free) < others {
			return failed(taken, "%s, and after the first new control plane %d more are to come", room, others).
				with("add hosts with role=master, or ask for fewer control planes")
		}
		if together := min(v.Together, len(nodes)); role == legacy.Worker && len(free) < together {
			return warned(taken, "%s, and up to %d come at the same time: the others wait until an old one is gone", room, together).
				with("let fewer come at the same time (--concurrency, --surge), or add hosts: waiting machines cost time of the window")
		}
		return held("%s, %s", room, basis)
	}
}

func hostsSound(v *view) verdict {
	var items []string
	holding := vmHosts(v)
	for hostName, nodes := range holding {
		host, known := v.hosts[hostName]
		switch {
		case !known:
			items = append(items, fmt.Sprintf("%s, which holds %s, is not known", hostName, name(nodes[0])))
		case !host.Ready:
			items = append(items, fmt.Sprintf("%s, which holds %s, is not ready", hostName, name(nodes[0])))
		case !host.Schedulable:
			items = append(items, fmt.Sprintf("%s, which holds %s, is cordoned", hostName, name(nodes[0])))
		}
	}
	if len(items) > 0 {
		return failed(items, "not every host under a VM is in order")
	}
	return held("%s ready and schedulable", plural(len(holding), "host is", "hosts are"))
}

func ownershipClear(v *view) verdict {
	var items []string
	for _, node := range v.cluster.Nodes {
		if node.Pod == nil || node.Deployment == nil {
			continue
		}
		deployment := &node.Deployment.Object
		switch {
		case node.ReplicaSet == nil:
			items = append(items, name(node)+" has no ReplicaSet")
		case !ownedBy(node.Pod.Object.OwnerReferences, node.ReplicaSet.Object.Name, node.ReplicaSet.Object.UID):
			items = append(items, fmt.Sprintf("%s does not belong to %s", node.Pod.Ref, node.ReplicaSet.Ref))
		case !ownedBy(node.ReplicaSet.Object.OwnerReferences, deployment.Name, deployment.UID):
			items = append(items, fmt.Sprintf("%s does not belong to %s", node.ReplicaSet.Ref, node.Deployment.Ref))
		case deployment.Spec.Replicas != nil && *deployment.Spec.Replicas != 1:
			items = append(items, fmt.Sprintf("%s wants %d replicas", node.Deployment.Ref, *deployment.Spec.Replicas))
		}
	}
	if len(items) > 0 {
		return failed(items, "who owns a VM's pod is not clear")
	}
	return held("each has one ReplicaSet and one Deployment")
}
