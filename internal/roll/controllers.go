package roll

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// Where the legacy master keeps the manifests of its static pods, and where those wait that it shall not run (k8scloudconfig v10.16.1,
// legacy-system.md 6.2). The API server's own stays: with nobody on port 443 the VM's liveness probe would make the VM again, with empty disks.
const (
	manifestsFolder = "/etc/kubernetes"
	moveAway        = `set -eu
mkdir -p manifests-stopped
for file in k8s-controller-manager.yaml k8s-scheduler.yaml; do
  if [ -e "manifests/$file" ]; then mv "manifests/$file" "manifests-stopped/$file"; fi
done`
	// An image without rmdir must not hold up a rollback for an empty folder.
	// One that was killed while the API server was ended left that away as well.
	moveBack = `set -eu
if [ -e manifests-stopped/k8s-api-server.yaml ]; then mv manifests-stopped/k8s-api-server.yaml manifests/k8s-api-server.yaml; fi
for file in k8s-controller-manager.yaml k8s-scheduler.yaml; do
  if [ -e "manifests-stopped/$file" ]; then mv "manifests-stopped/$file" "manifests/$file"; fi
  [ -e "manifests/$file" ]
done
if [ -d manifests-stopped ]; then rmdir manifests-stopped || echo "an empty folder stays"; fi`
	// hangUp ends the API server for a minute, and puts its manifest back whatever happens to whoever asked for it: after about 140 s without it the
	// liveness probe would make the VM again.
	hangUp = `set -eu
file=k8s-api-server.yaml
back() { if [ -e "manifests-stopped/$file" ]; then mv "manifests-stopped/$file" "manifests/$file"; fi; }
trap back EXIT
trap 'exit 0' TERM INT
mkdir -p manifests-stopped
if [ -e "manifests/$file" ]; then mv "manifests/$file" "manifests-stopped/$file"; fi
sleep 60 &
wait $!`
	// apiServer is what the legacy API server's static pod is labelled with.
	apiServer = "api-server"
	// mover is the pod that does it.
	mover = "migration-legacy-controllers"
	// componentLabel tells what a legacy static pod is.
	componentLabel = "app.kubernetes.io/name"
)

// controllers are the legacy names of what is stopped, with the Leases by which one of its kind leads (Kubernetes v1.21).
func controllers() map[string]string {
	return map[string]string{"controller-manager": "kube-controller-manager", "scheduler": "kube-scheduler"}
}

func leaseKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}
}

// StopControllers ends the legacy controller-manager and scheduler by taking their manifests away, in a pod on the legacy master: nothing else
// of the machine changes, and its kubelet ends them within seconds.
func (c *Roller) StopControllers(ctx context.Context) error {
	return c.moveManifests(ctx, moveAway, 0)
}

// moveManifests runs a script on the legacy master until so many of the legacy controllers run there. The pod stays until they do: mirror pods are
// late, and only when there is no such pod do they tell how the manifests lie.
func (c *Roller) moveManifests(ctx context.Context, script string, wanted int) error {
	left, err := get(ctx, c.Workload.Client, coreKind("Pod"), systemNamespace, mover)
	if err != nil {
		return err
	}
	running, err := c.legacyControllers(ctx)
	switch {
	case err != nil:
		return err
	case left == nil && len(running) == wanted:
		return nil
	case left == nil || scriptOf(left) != script:
		if left, err = c.startMover(ctx, script); err != nil {
			return err
		}
	}
	if err := c.awaitMover(ctx, left); err != nil {
		return err
	}
	err = c.poll(ctx, func(ctx context.Context) (string, error) {
		running, err := c.legacyControllers(ctx)
		if err != nil || len(running) == wanted {
			return "", err
		}
		return fmt.Sprintf("%d of the legacy controllers to run instead of %d", wanted, len(running)), nil
	})
	if err != nil {
		return err
	}
	return c.removed(ctx, c.Workload, left)
}

// scriptOf is what a mover runs.
func scriptOf(pod *unstructured.Unstructured) string {
	containers, _, err := unstructured.NestedSlice(pod.Object, "spec", "containers")
	if err != nil || len(containers) == 0 {
		return ""
	}
	container, ok := containers[0].(map[string]any)
	if !ok {
		return ""
	}
	command, _, err := unstructured.NestedStringSlice(container, "command")
	if err != nil || len(command) == 0 {
		return ""
	}
	return command[len(command)-1]
}

// VerifyControllersStopped waits until neither runs on the legacy master, and until the new machine's do their work: whoever led before gives
// it up only when its Lease has run out.
func (c *Roller) VerifyControllersStopped(ctx context.Context) error {
	if err := c.poll(ctx, func(ctx context.Context) (string, error) {
		running, err := c.legacyControllers(ctx)
		if err != nil || len(running) == 0 {
			return "", err
		}
		return strings.Join(running, " and ") + " to end", nil
	}); err != nil {
		return err
	}
	node, err := c.newNode(ctx)
	if err != nil {
		return err
	}
	if node == nil {
		return fmt.Errorf("%w: the new machine has no Node", adopt.ErrReplaced)
	}
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		leases, err := adopt.List(ctx, c.Workload.Client, leaseKind(), systemNamespace)
		if err != nil {
			return "", err
		}
		for _, name := range slices.Sorted(maps.Values(controllers())) {
			// The holder is the host's name and a number (Kubernetes, cmd/kube-controller-manager/app/controllermanager.go).
			if l := leases[name]; l == nil || !strings.HasPrefix(text(l, "spec", "holderIdentity"), node.GetName()+"_") {
				return name + " of " + node.GetName() + " to lead", nil
			}
		}
		return "", nil
	})
}

// StartControllers puts the manifests back.
func (c *Roller) StartControllers(ctx context.Context) error {
	return c.moveManifests(ctx, moveBack, len(controllers()))
}

// VerifyControllersStarted waits until both run again.
func (c *Roller) VerifyControllersStarted(ctx context.Context) error {
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		running, err := c.legacyControllers(ctx)
		if err != nil || len(running) == len(controllers()) {
			return "", err
		}
		return "the legacy controller-manager and scheduler to run again", nil
	})
}

// legacyControllers are the mirror pods of what is to be stopped, on the legacy master.
func (c *Roller) legacyControllers(ctx context.Context) ([]string, error) {
	return c.mirrored(ctx, slices.Sorted(maps.Keys(controllers()))...)
}

// mirrored are the static pods of some components on the legacy master.
func (c *Roller) mirrored(ctx context.Context, components ...string) ([]string, error) {
	pods, err := c.podsOnMaster(ctx)
	if err != nil {
		return nil, err
	}
	var running []string
	for _, pod := range pods {
		if _, mirror := pod.GetAnnotations()[corev1.MirrorPodAnnotationKey]; mirror && slices.Contains(components, pod.GetLabels()[componentLabel]) {
			running = append(running, pod.GetName())
		}
	}
	return running, nil
}

// hangUpTime is how long the legacy API server may take to end: its kubelet kills it after half a minute.
const hangUpTime = 45 * time.Second

// calmBefore is how long the legacy API server has to be ready before it is ended again: a failed health check of the VM is forgotten after one that
// succeeds, and there is one every 35 s (legacy-system.md 4.6).
const calmBefore = 70 * time.Second

// hangUp ends the legacy API server, so that its clients connect again, which leads them to the new one. Without its etcd it would not refuse them but
// let them wait: who had asked it before, every kubelet among them, would be without an API until its own liveness probe ends it. From here on the VM has
// some 140 s, so everything that could hold up the removal is looked at before.
func (c *Roller) hangUp(ctx context.Context) error {
	err := c.startHangUp(ctx)
	if errors.Is(err, ErrNoShell) {
		c.tell("the legacy API server cannot be ended: %s; its clients will notice", err)
		return nil
	}
	if err != nil {
		return err
	}
	deadline := c.Clock.NewTimer(hangUpTime)
	defer deadline.Stop()
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		running, err := c.mirroredSoon(ctx, apiServer)
		select {
		case <-deadline.C():
			c.tell("the legacy API server has not ended in %s; its clients will notice", hangUpTime)
			return "", nil
		default:
		}
		if err != nil {
			return "", err
		}
		if len(running) == 0 {
			return "", nil
		}
		return "the legacy API server to end", nil
	})
}

// hangUpAsk limits a question to an API server that is ending: a connection that it has taken may get no answer any more, and nobody could go on meanwhile.
const hangUpAsk = 10 * time.Second

func (c *Roller) mirroredSoon(ctx context.Context, components ...string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, hangUpAsk)
	defer cancel()
	return c.mirrored(ctx, components...)
}

// startHangUp takes the API server's manifest away for a minute. When an earlier run has just done so, this one goes on from there: the time counts from then.
func (c *Roller) startHangUp(ctx context.Context) error {
	left, err := get(ctx, c.Workload.Client, coreKind("Pod"), systemNamespace, mover)
	if err != nil {
		return err
	}
	if left != nil && scriptOf(left) == hangUp {
		switch corev1.PodPhase(text(left, "status", "phase")) {
		case corev1.PodPending, corev1.PodRunning:
			return nil
		case corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown:
		}
	}
	if err := c.awaitCalm(ctx); err != nil {
		return err
	}
	_, err = c.startMover(ctx, hangUp)
	return err
}

// mayBeRetired makes sure that nothing keeps Cluster API and the provider from deleting the legacy machine once its etcd has left: its VM would be made anew by its liveness probe, with
// empty disks, and go on as a Node.
func (c *Roller) mayBeRetired(ctx context.Context) error {
	master, err := c.master()
	if err != nil {
		return err
	}
	cluster, err := c.must(ctx, clusterKind(), c.Picture.ID)
	if err != nil {
		return err
	}
	if paused, _, err := unstructured.NestedBool(cluster.Object, "spec", "paused"); err != nil || paused {
		return fmt.Errorf("%[1]w: Cluster/%[2]s is paused; unpause it (kubectl patch --namespace %[3]s cluster %[2]s --type merge --patch '{\"spec\":{\"paused\":false}}'), then run this again", ErrHeld, c.Picture.ID, c.Result.Namespace)
	}
	infrastructure, err := c.adopted(ctx, master)
	if err != nil {
		return err
	}
	if infrastructure == nil {
		return fmt.Errorf("%w: the KVMMachine of node %s is gone", adopt.ErrReplaced, master.ID)
	}
	machine, err := c.must(ctx, machineKind(), infrastructure.GetName())
	if err != nil {
		return err
	}
	for _, o := range []*unstructured.Unstructured{cluster, machine, infrastructure} {
		if isPaused(o) {
			return fmt.Errorf("%[1]w: %[2]s/%[4]s has the annotation %[5]s; take it off (kubectl annotate --namespace %[3]s %[2]s %[4]s %[5]s-), then run this again",
				ErrHeld, o.GetKind(), o.GetNamespace(), o.GetName(), clusterv1.PausedAnnotation)
		}
	}
	return nil
}

// mayLeave makes sure that etcd goes on without the legacy member: the new one answers, is well, leads, and holds the same. A machine that has crashed since both API servers were compared may
// hold something else, and what the legacy member holds goes with it.
func (c *Roller) mayLeave(ctx context.Context) error {
	return c.poll(ctx, func(ctx context.Context) (missing string, err error) {
		own, err := c.newEtcd(ctx)
		if err != nil {
			return "", err
		}
		missing, err = c.holdsAll(ctx, own)
		return missing, failure.Join(err, own.Close())
	})
}

// holdsAll says what the new member lacks to go on alone; empty for nothing.
func (c *Roller) holdsAll(ctx context.Context, own *etcd.Client) (missing string, err error) {
	status, err := own.Status(ctx, own.Endpoints()[0])
	switch {
	case err != nil:
		return "", err
	case len(status.Errors) > 0:
		return "", fmt.Errorf("%w: the new member says: %s", ErrUnwell, strings.Join(status.Errors, "; "))
	case status.Leader != status.Member:
		return "the new member to lead", nil
	}
	revision, err := etcd.Same(ctx, etcd.Place{Client: c.Members, Endpoint: c.legacyEndpoint()}, etcd.Place{Client: own, Endpoint: own.Endpoints()[0]})
	switch {
	case errors.Is(err, etcd.ErrMoved):
		return "a revision that both members have", nil
	case errors.Is(err, etcd.ErrDiffers):
		return "", fmt.Errorf("%w: %w; the legacy member stays; take the control plane back: migrate rollback %s --to adopt", ErrUnwell, err, c.Picture.ID)
	case err != nil:
		return "", err
	}
	c.note("both members of etcd hold the same at revision %d", revision)
	return "", c.tellBefore(ctx, own)
}

// tellBefore notes etcd's members right before the legacy one leaves. What that one says of itself is worth no wait.
func (c *Roller) tellBefore(ctx context.Context, own *etcd.Client) error {
	table, err := own.Table(ctx)
	if err != nil {
		return err
	}
	if status, err := c.Members.Status(ctx, c.legacyEndpoint()); err == nil {
		table.Add(&status)
	}
	c.note("etcd before: %s", tableText(table))
	return nil
}

// awaitCalm waits until the legacy API server has been ready for a while: an earlier try may have ended it before. For how long it has, two times of its kubelet tell, whose clock may be another one than
// this machine's: when the server became ready, and when the kubelet last said that it is there. Where it does not say that, what this run has seen itself tells.
func (c *Roller) awaitCalm(ctx context.Context) error {
	var since, seen time.Time
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		names, err := c.mirrored(ctx, apiServer)
		if err != nil {
			return "", err
		}
		if len(names) == 0 {
			return "the legacy API server to be back", nil
		}
		pod := &corev1.Pod{}
		if err := c.Workload.Client.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: names[0]}, pod); err != nil {
			return "pod " + names[0], client.IgnoreNotFound(err)
		}
		became, ready := readySince(pod)
		switch {
		case !ready:
			seen = time.Time{}
		case became.IsZero():
			return "", nil // It never was anything else.
		case seen.IsZero() || !became.Equal(since):
			since, seen = became, c.Clock.Now()
		}
		if ready && (c.lastSign(ctx, pod.Spec.NodeName).Sub(became) >= calmBefore || c.Clock.Since(seen) >= calmBefore) {
			return "", nil
		}
		return "the legacy API server to be ready for " + calmBefore.String(), nil
	})
}

// readySince tells whether a pod is ready, and since when, by its kubelet's clock.
func readySince(pod *corev1.Pod) (since time.Time, ready bool) {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return condition.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}

// lastSign is when a kubelet last said that it is there, by its own clock: it renews a Lease every ten seconds. Zero when nobody can tell.
func (c *Roller) lastSign(ctx context.Context, node string) time.Time {
	lease, err := get(ctx, c.Workload.Client, leaseKind(), corev1.NamespaceNodeLease, node)
	if err != nil || lease == nil {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, text(lease, "spec", "renewTime"))
	if err != nil {
		return time.Time{}
	}
	return at
}

// podsOnMaster are the pods of the legacy master's Node, by namespace and name.
func (c *Roller) podsOnMaster(ctx context.Context) ([]*unstructured.Unstructured, error) {
	master, err := c.master()
	if err != nil {
		return nil, err
	}
	pods, err := adopt.List(ctx, c.Workload.Client, coreKind("Pod"), systemNamespace)
	if err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		if text(pods[name], "spec", "nodeName") == master.Pod.Object.Name {
			out = append(out, pods[name])
		}
	}
	return out, nil
}

// startMover runs a script in /etc/kubernetes of the legacy master, in a pod that is bound to it. One that an earlier run left is removed first: it
// may have had another script.
func (c *Roller) startMover(ctx context.Context, script string) (*unstructured.Unstructured, error) {
	if err := c.removeMover(ctx); err != nil {
		return nil, err
	}
	wanted, err := c.moverPod(ctx, script)
	if err != nil {
		return nil, err
	}
	return c.Workload.Writer.Create(ctx, wanted)
}

// removeMover removes that pod, and waits until what ran in it has ended.
func (c *Roller) removeMover(ctx context.Context) error {
	left, err := get(ctx, c.Workload.Client, coreKind("Pod"), systemNamespace, mover)
	if err != nil || left == nil {
		return err
	}
	return c.removed(ctx, c.Workload, left)
}

// awaitMover waits until a script has ended. The pod of one that failed is removed: the next try needs another.
func (c *Roller) awaitMover(ctx context.Context, pod *unstructured.Unstructured) error {
	failed := ""
	scope := kube.Scope{GroupVersionKind: coreKind("Pod"), Namespace: systemNamespace}
	err := c.Await(ctx, c.Workload, scope, func(byName map[string]*unstructured.Unstructured) string {
		now := byName[mover]
		if now == nil {
			failed = "it is gone"
			return ""
		}
		switch corev1.PodPhase(text(now, "status", "phase")) {
		case corev1.PodSucceeded:
			return ""
		case corev1.PodFailed:
			failed = "it failed: " + lastWords(now)
			return ""
		case corev1.PodPending, corev1.PodRunning, corev1.PodUnknown:
		}
		return strings.TrimSuffix("pod "+systemNamespace+"/"+mover+" on the legacy master to end: "+lastWords(now), ": ")
	})
	if err != nil || failed == "" {
		return err
	}
	if err := c.removed(ctx, c.Workload, pod); err != nil {
		return err
	}
	return fmt.Errorf("moving manifests in pod %s/%s on the legacy master: %s", systemNamespace, mover, failed)
}

// lastWords are what a pod's container or kubelet said.
func lastWords(pod *unstructured.Unstructured) string {
	statuses, _, err := unstructured.NestedSlice(pod.Object, "status", "containerStatuses")
	if err == nil && len(statuses) > 0 {
		if status, ok := statuses[0].(map[string]any); ok {
			for _, state := range []string{"terminated", "waiting"} {
				reason, _, reasonErr := unstructured.NestedString(status, "state", state, "reason")
				message, _, messageErr := unstructured.NestedString(status, "state", state, "message")
				if reasonErr == nil && messageErr == nil && reason+message != "" {
					return strings.TrimSuffix(strings.TrimSpace(reason+": "+message), ":")
				}
			}
		}
	}
	return text(pod, "status", "message")
}

// shells are parts of the names of images that have a shell, and that every legacy master has pulled (kube-proxy is a DaemonSet there, and
// built on Debian; calico's node image brings one as well). An image from elsewhere could not be pulled at night.
func shells() []string { return []string{"/kube-proxy:", "/node:", "/hyperkube:"} }

// moverPod is a pod that needs no scheduler, no pod network and no registry.
func (c *Roller) moverPod(ctx context.Context, script string) (*unstructured.Unstructured, error) {
	master, err := c.master()
	if err != nil {
		return nil, err
	}
	pods, err := c.podsOnMaster(ctx)
	if err != nil {
		return nil, err
	}
	image := shellImage(pods)
	if image == "" {
		return nil, fmt.Errorf("%w: no pod of kube-system on %s uses one of %s; move k8s-controller-manager.yaml and k8s-scheduler.yaml by hand between %s/manifests "+
			"and %s/manifests-stopped, away from the first to stop them and back to start them, then run again",
			ErrNoShell, master.Pod.Object.Name, strings.Join(shells(), ", "), manifestsFolder, manifestsFolder)
	}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"nodeName": master.Pod.Object.Name, "hostNetwork": true, "restartPolicy": string(corev1.RestartPolicyNever), "priorityClassName": "system-node-critical",
		"automountServiceAccountToken": false, "enableServiceLinks": false,
		"tolerations": []any{map[string]any{"operator": string(corev1.TolerationOpExists)}},
		"volumes":     []any{map[string]any{"name": "kubernetes", "hostPath": map[string]any{"path": manifestsFolder, "type": string(corev1.HostPathDirectory)}}},
		"containers": []any{map[string]any{
			"name": "move", "image": image, "imagePullPolicy": string(corev1.PullIfNotPresent),
			"command": []any{"/bin/sh", "-c", script}, "workingDir": "/host",
			"terminationMessagePolicy": string(corev1.TerminationMessageFallbackToLogsOnError),
			"volumeMounts":             []any{map[string]any{"name": "kubernetes", "mountPath": "/host"}},
			"securityContext":          map[string]any{"runAsUser": int64(0)},
		}},
	}}}
	o.SetGroupVersionKind(coreKind("Pod"))
	o.SetNamespace(systemNamespace)
	o.SetName(mover)
	// A drain that finds the pod of a run that was killed must not end what it does: every new run would begin it again.
	o.SetLabels(map[string]string{translate.LabelCluster: c.Picture.ID, clusterv1.PodDrainLabel: "skip"})
	return o, nil
}

// shellImage is the first image on the machine that has a shell; empty when none is known to.
func shellImage(pods []*unstructured.Unstructured) string {
	for _, part := range shells() {
		for _, pod := range pods {
			containers, _, err := unstructured.NestedSlice(pod.Object, "spec", "containers")
			if err != nil {
				continue
			}
			for _, one := range containers {
				container, ok := one.(map[string]any)
				if !ok {
					continue
				}
				if image, _ := container["image"].(string); strings.Contains(image, part) {
					return image
				}
			}
		}
	}
	return ""
}
