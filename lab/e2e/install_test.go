//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/clusterctl"
)

// nextVersion is what the same tree is published as for an upgrade: of the series that metadata.yaml knows.
const nextVersion = "v0.1.1"

// emptyCluster is what an upgrade has to leave alone: its endpoint is made by the controller.
const emptyCluster = `
apiVersion: v1
kind: Namespace
metadata: {name: ` + namespace + `}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: ` + cluster + `, namespace: ` + namespace + `}
spec: {infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: KVMCluster, name: ` + cluster + `}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: KVMCluster
metadata: {name: ` + cluster + `, namespace: ` + namespace + `}
spec: {}
`

// TestProviderComesAndGoes installs the provider, upgrades it beside a cluster and removes it again with clusterctl, without a virtual machine.
func TestProviderComesAndGoes(t *testing.T) {
	w := newWorld(t)
	w.writeRepository(t.Context())
	w.walk(t.Context(), t, []step{
		{"a lab with one host starts", func(ctx context.Context) { w.startLab(ctx, 1, "--parts", "controllers") }},
		{"clusterctl installs the providers", w.clusterctlInstalls},
		{"a cluster without machines gets its endpoint", w.emptyClusterGetsItsEndpoint},
		{"clusterctl upgrades the provider and nothing of the cluster changes", w.providerIsUpgraded},
		{"the cluster is deleted", w.emptyClusterIsDeleted},
		{"clusterctl removes the provider and nothing is left of it", w.providerIsRemoved},
		{"the lab ends and nothing is left", w.labEnds},
	})
}

func (w *world) emptyClusterGetsItsEndpoint(ctx context.Context) {
	w.apply(ctx, emptyCluster)
	w.eventually(ctx, short, "the KVMCluster is provisioned", func(ctx context.Context) error {
		u, err := w.get(ctx, namespace, "kvmclusters", cluster)
		if err != nil {
			return err
		}
		if done, _, _ := unstructured.NestedBool(fields(u), "status", "initialization", "provisioned"); !done {
			return errors.New("it has no endpoint yet")
		}
		// Cluster API copies it, and what an upgrade leaves alone is compared with what was there before.
		if u, err = w.get(ctx, namespace, "clusters.cluster.x-k8s.io", cluster); err != nil {
			return err
		}
		if host, _, _ := unstructured.NestedString(fields(u), "spec", "controlPlaneEndpoint", "host"); host == "" {
			return errors.New("the Cluster has no endpoint yet")
		}
		return nil
	})
}

// providerIsUpgraded publishes a second version. Steps: `upgrade plan` offers it; `upgrade apply` brings it; the new controller works, and the
// cluster and its Service are the ones from before.
func (w *world) providerIsUpgraded(ctx context.Context) {
	before := w.leftAlone(ctx)
	w.publish(ctx, nextVersion)
	plan := w.must(ctx, w.clusterctl, "upgrade", "plan", "--config", w.config)
	require.Regexp(w.t, `infrastructure-kvm +capk-system +InfrastructureProvider +v0\.1\.0 +v0\.1\.1`, plan)
	_, err := w.run(ctx, "", w.clusterctl, "upgrade", "apply", "--config", w.config, "--infrastructure", "capk-system/kvm:"+nextVersion,
		"--wait-providers", "--wait-provider-timeout", "600")
	require.NoError(w.t, err)

	installed, err := w.get(ctx, "capk-system", "providers.clusterctl.cluster.x-k8s.io", "infrastructure-kvm")
	require.NoError(w.t, err)
	version, _, err := unstructured.NestedString(fields(installed), "version")
	require.NoError(w.t, err)
	require.Equal(w.t, nextVersion, version)
	images := w.must(ctx, w.kubectl, "-n", "capk-system", "get", "pods", "-o", "jsonpath={.items[*].spec.containers[*].image}")
	require.Contains(w.t, images, ":"+nextVersion)
	require.NotContains(w.t, images, ":"+clusterctl.DefaultVersion)

	// Webhook and controller of the new version both answer for a change that only they understand.
	w.must(ctx, w.kubectl, "-n", namespace, "annotate", "kvmcluster", cluster, clusterv1.PausedAnnotation+"=")
	w.eventually(ctx, short, "the new controller sees that the cluster is paused", func(ctx context.Context) error {
		u, err := w.get(ctx, namespace, "kvmclusters", cluster)
		if err != nil {
			return err
		}
		return needCondition(u, clusterv1.PausedCondition)
	})
	w.must(ctx, w.kubectl, "-n", namespace, "annotate", "kvmcluster", cluster, clusterv1.PausedAnnotation+"-")
	require.Equal(w.t, before, w.leftAlone(ctx))
}

// leftAlone tells which objects of the cluster there are, and what they ask for.
func (w *world) leftAlone(ctx context.Context) map[string]any {
	seen := map[string]any{}
	for _, kind := range []string{"clusters.cluster.x-k8s.io", "kvmclusters", "services"} {
		all, err := w.list(ctx, w.mc, kind, "-n", namespace)
		require.NoError(w.t, err)
		require.NotEmpty(w.t, all, kind)
		for i := range all {
			seen[kind+"/"+all[i].GetName()+"/"+string(all[i].GetUID())] = all[i].Object["spec"]
		}
	}
	return seen
}

func (w *world) emptyClusterIsDeleted(ctx context.Context) {
	w.must(ctx, w.kubectl, "-n", namespace, "delete", "cluster", cluster, "--timeout", "5m")
	w.must(ctx, w.kubectl, "delete", "namespace", namespace, "--timeout", "5m")
}

func (w *world) providerIsRemoved(ctx context.Context) {
	w.must(ctx, w.clusterctl, "delete", "--config", w.config, "--infrastructure", "kvm", "--include-crd", "--include-namespace")
	w.eventually(ctx, short, "nothing of the provider is left", func(ctx context.Context) error {
		for _, kind := range []string{
			"namespaces", "customresourcedefinitions", "validatingwebhookconfigurations", "mutatingwebhookconfigurations", "clusterroles", "clusterrolebindings",
			"providers.clusterctl.cluster.x-k8s.io",
		} {
			left, err := w.list(ctx, w.mc, kind, "-A")
			if err != nil {
				return err
			}
			for i := range left {
				if name := left[i].GetName(); strings.HasPrefix(name, "capk-") || strings.Contains(name, "kvm") {
					return fmt.Errorf("%s %s is still there", kind, name)
				}
			}
		}
		pods, err := w.list(ctx, w.mc, "pods", "-A")
		if err != nil {
			return err
		}
		if len(pods) == 0 {
			return errors.New("the other providers have gone as well")
		}
		return nil
	})
}
