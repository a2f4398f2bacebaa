package clusterctl_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/release/artifacts"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/clusterctl"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mctest"
)

const (
	root = "../.."
	crds = root + "/config/crd/bases"
	// version of Kubernetes in the clusters that are generated.
	version = "v1.36.3"
	// published is named with its version: the processes of this management cluster were not installed by clusterctl.
	published = "kvm:" + clusterctl.DefaultVersion
)

var (
	// cluster runs Cluster API, and the controller manager that puts its roles together, with everything our templates need. Nobody reconciles the provider's own kinds: the tests do what is
	// wanted of it, one step at a time.
	cluster *mc.Cluster
	// tool is the real clusterctl with a repository made from the working tree.
	tool clusterctl.Tool
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	// Warnings of the API server would come with a complaint that nobody wants to log them.
	ctrllog.SetLogger(logr.Discard())
	dir, err := os.MkdirTemp("", "clusterctl-")
	if err == nil {
		defer os.RemoveAll(dir) //nolint:errcheck // A temporary directory.
		tool, err = prepare(context.Background(), dir)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	opts := mc.Options{
		Parts: mc.ControllerManager | mc.ClusterAPI, CRDDirs: []string{crds},
		FeatureGates: map[string]bool{"ClusterTopology": true, "KubeadmBootstrapFormatIgnition": true},
	}
	return mctest.Main(m, opts, func(c *mc.Cluster) {
		cluster = c
		tool.Kubeconfig = c.KubeconfigPath()
	})
}

func prepare(ctx context.Context, dir string) (clusterctl.Tool, error) {
	b, err := builder.New(builder.Options{Out: os.Stderr})
	if err != nil {
		return clusterctl.Tool{}, err
	}
	assets, err := b.Ensure(ctx, clusterctl.Components()...)
	if err != nil {
		return clusterctl.Tool{}, err
	}
	files, err := artifacts.Build(root, clusterctl.DefaultVersion)
	if err != nil {
		return clusterctl.Tool{}, err
	}
	config, err := clusterctl.Repository{Dir: dir, Files: files, Assets: assets}.Write()
	return clusterctl.Tool{Program: assets[builder.Clusterctl], Config: config}, err
}
