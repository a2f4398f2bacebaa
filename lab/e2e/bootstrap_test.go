//go:build e2e

package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Pools of workers that the walk makes beside the cluster's own and removes again.
const (
	ignitionPool = cluster + "-ignition"
	failingPool  = cluster + "-failing"
)

// missingRuntime is a container runtime's socket that no guest has: kubeadm's checks refuse it, on the first try.
const missingRuntime = "unix:///run/no-such/runtime.sock"

// What machines have of processors. Those of emulated machines that share two cores spin for locks whose holder is not running, and wait for each other's answers to interrupts, so each has one. Alone on
// the two cores, a control plane with two comes up in two thirds of the time; beside another one it does not come up.
const (
	controlPlaneProcessors = "1"
	workerProcessors       = "1"
)

// generate fills in a cluster template with the sizes of the walk, as a user does.
func (w *world) generate(ctx context.Context, flavor string) objects {
	w.t.Helper()
	argv := []string{
		"env",
		"CONTROL_PLANE_MACHINE_CPUS=" + controlPlaneProcessors, "WORKER_MACHINE_CPUS=" + workerProcessors, "CONTROL_PLANE_MACHINE_MEMORY=2560Mi", "WORKER_MACHINE_MEMORY=1536Mi",
		"CONTROL_PLANE_VOLUME_SIZE_GB=10", "VOLUME_SIZE_GB=10", "CONTROL_PLANE_DOCKER_VOLUME_SIZE_GB=6", "DOCKER_VOLUME_SIZE_GB=6",
		w.clusterctl, "generate", "cluster", cluster, "--config", w.config, "--infrastructure", "kvm", "--target-namespace", namespace,
		"--kubernetes-version", kubernetesVersion, "--control-plane-machine-count", "1", "--worker-machine-count", "1",
	}
	if flavor != "" {
		argv = append(argv, "--flavor", flavor)
	}
	all, err := parse(w.must(ctx, argv...))
	require.NoError(w.t, err)
	return all
}

// pool is a MachineDeployment of one worker with templates of its own, made from the workers of a cluster template's flavor.
func (w *world) pool(ctx context.Context, flavor, name string, change func(config *unstructured.Unstructured) error) string {
	w.t.Helper()
	all := w.generate(ctx, flavor)
	var own objects
	for _, kind := range []string{"MachineDeployment", "KubeadmConfigTemplate", "KVMMachineTemplate"} {
		u, err := all.find(kind, cluster+"-md-0")
		require.NoError(w.t, err)
		own = append(own, u)
	}
	config, err := own.find("KubeadmConfigTemplate", "")
	require.NoError(w.t, err)
	require.NoError(w.t, change(config))
	text, err := own.manifest()
	require.NoError(w.t, err)
	return strings.ReplaceAll(text, cluster+"-md-0", name)
}

// poolMembers are a pool's KVMMachines.
func (w *world) poolMembers(ctx context.Context, pool string) ([]unstructured.Unstructured, error) {
	return w.list(ctx, w.mc, "kvmmachines", "-n", namespace, "-l", "cluster.x-k8s.io/deployment-name="+pool)
}

// poolIsRemoved deletes a pool and waits until its machines and nodes are gone.
func (w *world) poolIsRemoved(ctx context.Context, pool string, nodes int) {
	w.t.Helper()
	w.must(ctx, w.kubectl, "-n", namespace, "delete", "machinedeployment/"+pool, "--wait=false")
	w.eventually(ctx, long, "the machine of "+pool+" is gone", func(ctx context.Context) error {
		left, err := w.poolMembers(ctx, pool)
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("%s is still there", left[0].GetName())
		}
		return nil
	})
	w.must(ctx, w.kubectl, "-n", namespace, "delete", "kubeadmconfigtemplate/"+pool, "kvmmachinetemplate/"+pool)
	w.waitNodes(ctx, medium, nodes)
}

// ignitionWorkerJoins adds a worker whose bootstrap data are Ignition's, and looks into it: kubeadm ran without cloud-init, on disks that the agent had prepared before.
func (w *world) ignitionWorkerJoins(ctx context.Context) {
	size := w.size(ctx)
	w.apply(ctx, w.pool(ctx, "ignition", ignitionPool, func(config *unstructured.Unstructured) error { return nodeSettings(config, "spec.template.spec") }))
	w.eventually(ctx, long, "the machine with Ignition is bootstrapped", func(ctx context.Context) error {
		machines, err := w.poolMembers(ctx, ignitionPool)
		if err != nil {
			return err
		}
		return problemOf(machines)
	})
	w.waitNodes(ctx, long, size+1)
	machines, err := w.poolMembers(ctx, ignitionPool)
	require.NoError(w.t, err)
	require.Len(w.t, machines, 1)
	name := machines[0].GetName()
	w.tellReady(ctx, name)
	w.inspectorIsApplied(ctx)
	facts := append(commonFacts(name), processorsOf(workerProcessors),
		fact{"who applied the bootstrap data", "test -e /var/lib/ignition/done && test ! -e /var/lib/cloud/instance && echo Ignition alone", "Ignition alone"},
		fact{"kubeadm's unit", "systemctl show kubeadm.service -p Result", "Result=success"},
		fact{"the sentinel of the bootstrap provider", "cat /run/cluster-api/bootstrap-success.complete", "success"},
	)
	for i, got := range w.ask(ctx, name, facts) {
		require.Contains(w.t, got, facts[i].want, "%s of %s", facts[i].what, name)
		w.say("  %s: %s: ok", name, facts[i].what)
	}
	w.eventually(ctx, short, "the node of "+name+" has its machine's provider id", func(ctx context.Context) error {
		nodes, err := w.list(ctx, w.wc, "nodes", "--field-selector", "metadata.name="+name)
		if err != nil {
			return err
		}
		if len(nodes) != 1 {
			return fmt.Errorf("there are %d nodes %s", len(nodes), name)
		}
		want := "kvm://" + cluster + "/" + name
		id, _, err := unstructured.NestedString(nodes[0].Object, "spec", "providerID")
		if err == nil && id != want {
			err = fmt.Errorf("it is %q and not %q", id, want)
		}
		return err
	})
	w.poolIsRemoved(ctx, ignitionPool, size)
}

// failedBootstrapIsTold adds a worker on which kubeadm has to give up: the condition says so with kubeadm's own words and without its token, an event tells it, and the machine goes like any other.
func (w *world) failedBootstrapIsTold(ctx context.Context) {
	size := w.size(ctx)
	w.apply(ctx, w.pool(ctx, "", failingPool, func(config *unstructured.Unstructured) error {
		return set(config, missingRuntime, "spec.template.spec.joinConfiguration.nodeRegistration.criSocket")
	}))
	var machine *unstructured.Unstructured
	w.eventually(ctx, long, "the machine says that its bootstrap failed", func(ctx context.Context) error {
		machines, err := w.poolMembers(ctx, failingPool)
		if err != nil {
			return err
		}
		problem := problemOf(machines)
		switch {
		case problem == nil:
			return fmt.Errorf("%w: kubeadm joined with the runtime %s", errHopeless, missingRuntime)
		case !errors.Is(problem, errHopeless):
			return problem
		}
		machine = &machines[0]
		return nil
	})
	status, detail := condition(machine, "BootstrapExecSucceeded")
	assert.Equal(w.t, "False", status)
	assert.Contains(w.t, detail, "/run/no-such/runtime.sock", "the end of the guest's log")
	assert.NotContains(w.t, detail, w.joinToken(ctx, machine.GetName()), "the condition must not tell the token")
	assert.Contains(w.t, w.reasons(ctx, machine.GetName()), bootstrapFailed, "events of %s", machine.GetName())
	w.poolIsRemoved(ctx, failingPool, size)
}

// joinToken is the secret half of the token in a machine's bootstrap data.
func (w *world) joinToken(ctx context.Context, name string) string {
	w.t.Helper()
	machine, err := w.get(ctx, namespace, "machines.cluster.x-k8s.io", name)
	require.NoError(w.t, err)
	secretName, _, err := unstructured.NestedString(fields(machine), "spec", "bootstrap", "dataSecretName")
	require.NoError(w.t, err)
	secret, err := w.get(ctx, namespace, "secrets", secretName)
	require.NoError(w.t, err)
	encoded, _, err := unstructured.NestedString(fields(secret), "data", "value")
	require.NoError(w.t, err)
	raw, err := base64.StdEncoding.DecodeString(encoded)
	require.NoError(w.t, err)
	found := regexp.MustCompile(`token: [a-z0-9]{6}\.([a-z0-9]{16})`).FindSubmatch(raw)
	require.Len(w.t, found, 2, "the bootstrap data of %s have a token", name)
	return string(found[1])
}
