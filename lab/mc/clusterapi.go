package mc

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

// capiPorts of one Cluster API manager.
type capiPorts struct{ webhook, health, diagnostics int }

// provider is one Cluster API manager.
type provider struct {
	// component is the builder's name of the binary, and of the directory of
	// its manifests.
	component string
	// gates are the feature gates the binary knows: an unknown one is fatal.
	gates []string
	// args are arguments of its own.
	args []string
}

func providers() []provider {
	common := []string{"MachinePool", "PriorityQueue", "ReconcilerRateLimiting"}
	return []provider{
		{component: builder.ClusterAPICore, gates: append([]string{
			"ClusterTopology", "RuntimeSDK", "MachineSetPreflightChecks", "InPlaceUpdates", "MachineTaintPropagation",
			"MachineWaitForVolumeDetachConsiderVolumeAttachments",
		}, common...)},
		{component: builder.ClusterAPIBootstrap, gates: append([]string{"KubeadmBootstrapFormatIgnition"}, common...)},
		// It asks etcd through the API server and the kubelet, three TLS connections one in the other. The ten seconds that it has by default are not enough while two cores emulate two control
		// planes: it never finds out that it may remove the old one of a roll.
		{component: builder.ClusterAPIControl, args: []string{"--etcd-dial-timeout-duration=60s", "--etcd-call-timeout-duration=60s"}, gates: append([]string{
			"ClusterTopology", "KubeadmBootstrapFormatIgnition", "InPlaceUpdates", "MachineTaintPropagation",
		}, common...)},
	}
}

// startClusterAPI installs the CRDs of all providers, then their RBAC,
// namespaces and webhooks, and starts their managers. CRDs come first for all:
// each manager watches kinds of the others and ends when one is unknown.
func (c *Cluster) startClusterAPI(ctx context.Context) error {
	managers := c.opts.Parts.Has(ClusterAPI)
	var crds []*unstructured.Unstructured
	for _, p := range providers() {
		found, err := c.providerCRDs(p, managers)
		if err != nil {
			return err
		}
		crds = append(crds, found...)
	}
	if err := c.installCRDs(ctx, crds); err != nil {
		return fmt.Errorf("installing the CRDs of Cluster API: %w", err)
	}
	if !managers {
		return nil
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, p := range providers() {
		wg.Go(func() {
			if err := c.startProvider(ctx, p); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return c.waitAdmission(ctx)
}

func (c *Cluster) manifests(p provider, sub ...string) string {
	return filepath.Join(append([]string{c.assets[builder.ClusterAPIManifests], p.component}, sub...)...)
}

// providerCRDs reads the CRDs of a provider and does what its kustomization
// does: contract labels, the provider's label and, with managers running, the
// conversion webhook.
func (c *Cluster) providerCRDs(p provider, convert bool) ([]*unstructured.Unstructured, error) {
	crds, err := readCRDs(c.manifests(p, "crd", "bases"))
	if err != nil {
		return nil, err
	}
	top, err := manifest.ReadKustomization(c.manifests(p, "default"))
	if err != nil {
		return nil, err
	}
	for _, crd := range crds {
		manifest.AddLabels(crd, top.AllLabels())
	}
	if !convert {
		return crds, nil
	}
	patches, err := manifest.ReadDir(c.manifests(p, "crd", "patches"))
	if err != nil {
		return nil, err
	}
	manifest.Merge(crds, patches)
	for _, crd := range crds {
		if err := c.convertByURL(crd, c.webhookURL(p)); err != nil {
			return nil, err
		}
	}
	return crds, nil
}

func (c *Cluster) webhookURL(p provider) string {
	return "https://" + address(c.ports.capi[p.component].webhook)
}

// startProvider creates what a manager needs, starts it and waits until it is
// ready, which includes its webhook server.
func (c *Cluster) startProvider(ctx context.Context, p provider) error {
	k, err := manifest.ReadKustomization(c.manifests(p, "default"))
	if err != nil {
		return err
	}
	if err := c.installRBAC(ctx, p, k); err != nil {
		return fmt.Errorf("installing the RBAC of %s: %w", p.component, err)
	}
	hooks, err := manifest.ReadFile(c.manifests(p, "webhook", "manifests.yaml"))
	if err != nil {
		return err
	}
	if err := k.Apply(hooks); err != nil {
		return err
	}
	// Before the manager runs, writes of these kinds are refused. Nobody writes
	// any until Start returns, and the API server learns of them early.
	if err := c.installWebhooks(ctx, hooks, c.webhookURL(p)); err != nil {
		return err
	}
	process, err := c.manager(p, k)
	if err != nil {
		return err
	}
	return c.Run(ctx, process)
}

// installRBAC creates the provider's namespace, service account and roles. The
// managers run with exactly the rights their release gives them, so a missing
// aggregated role for the product's kinds shows here and not at a customer's.
func (c *Cluster) installRBAC(ctx context.Context, p provider, k manifest.Kustomization) error {
	objects, err := manifest.ReadDir(c.manifests(p, "rbac"))
	if err != nil {
		return err
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Kustomization" })
	patches, err := filepath.Glob(c.manifests(p, "default", "*role*_patch.yaml"))
	if err != nil {
		return fmt.Errorf("listing RBAC patches: %w", err)
	}
	for _, path := range patches {
		patch, err := manifest.ReadFile(path)
		if err != nil {
			return err
		}
		manifest.Merge(objects, patch)
	}
	if err := k.Apply(objects); err != nil {
		return err
	}
	ns := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": k.Namespace},
	}}
	manifest.AddLabels(ns, k.AllLabels())
	if err := manifest.Ensure(ctx, c.client, []*unstructured.Unstructured{ns}); err != nil {
		return err
	}
	return manifest.Ensure(ctx, c.client, objects)
}

// manager describes the manager's process. It authenticates as the service
// account of its release, by certificate: no token has to be fetched first.
func (c *Cluster) manager(p provider, k manifest.Kustomization) (Process, error) {
	account := k.NamePrefix + "manager"
	config, err := c.writeKubeconfig(p.component, "system:serviceaccount:"+k.Namespace+":"+account,
		"system:serviceaccounts", "system:serviceaccounts:"+k.Namespace)
	if err != nil {
		return Process{}, err
	}
	certs, err := c.ServingCert(p.component)
	if err != nil {
		return Process{}, err
	}
	at := c.ports.capi[p.component]
	argv := []string{
		c.assets[p.component],
		"--kubeconfig=" + config,
		"--webhook-port=" + strconv.Itoa(at.webhook), "--webhook-cert-dir=" + certs,
		"--health-addr=" + address(at.health),
		"--diagnostics-address=" + address(at.diagnostics), "--insecure-diagnostics=true",
		"--leader-elect=false",
	}
	argv = append(argv, p.args...)
	if gates := c.featureGates(p); gates != "" {
		argv = append(argv, "--feature-gates="+gates)
	}
	return Process{
		Name: p.component, Version: builder.ClusterAPIVersion, URL: c.webhookURL(p),
		Argv:  append(argv, c.opts.ExtraArgs[p.component]...),
		Env:   []string{"POD_NAMESPACE=" + k.Namespace},
		Ready: healthy(c.probe, "http://"+address(at.health)+"/readyz"),
	}, nil
}

func (c *Cluster) featureGates(p provider) string {
	var gates []string
	for _, name := range slices.Sorted(maps.Keys(c.opts.FeatureGates)) {
		if slices.Contains(p.gates, name) {
			gates = append(gates, fmt.Sprintf("%s=%t", name, c.opts.FeatureGates[name]))
		}
	}
	return strings.Join(gates, ",")
}

// waitAdmission returns when the API server calls the webhooks: it learns of
// them through a watch, some time after they are stored. A Machine that comes
// back with the label only the webhook sets proves it.
func (c *Cluster) waitAdmission(ctx context.Context) error {
	const label = "cluster.x-k8s.io/cluster-name"
	err := c.poll(ctx, nil, func(ctx context.Context) error {
		probe := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
			"metadata": map[string]any{"name": "admission-probe", "namespace": "default"},
			"spec": map[string]any{
				"clusterName": "admission-probe",
				"bootstrap":   map[string]any{"dataSecretName": "admission-probe"},
				"infrastructureRef": map[string]any{
					"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Probe", "name": "admission-probe",
				},
			},
		}}
		if err := c.client.Create(ctx, probe, client.DryRunAll); err != nil {
			return err
		}
		if probe.GetLabels()[label] == "" {
			return fmt.Errorf("a Machine comes back without label %s", label)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the admission webhooks of Cluster API: %w", err)
	}
	return nil
}
