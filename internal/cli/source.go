package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// reachTimeout is how long a workload cluster may take to say that it is there, before it counts as one that is not reachable from here: an inventory asks many of those.
const reachTimeout = 5 * time.Second

// insideTimeout is how long a workload cluster that is reachable may take for an answer: lists of some thousand pods, or a machine that is busy.
const insideTimeout = 30 * time.Second

// sourceFlags say where legacy clusters are read from.
type sourceFlags struct {
	from    string
	storage legacy.StorageConfigOptions
}

func (f *sourceFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.from, "from", "", "read a snapshot (directory, or .tar.gz file) instead of a live management cluster")
	f.addStorageTo(cmd)
}

// addStorageTo adds the flags that a live source needs as well.
func (f *sourceFlags) addStorageTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.storage.Namespace, "storageconfig-namespace", "giantswarm", "namespace of cluster-service's StorageConfig")
	flags.StringVar(&f.storage.Name, "storageconfig-name", "cluster-service", "name of cluster-service's StorageConfig")
	flags.StringArrayVar(&f.storage.Keys, "storageconfig-key-layout", []string{"/cluster/<id>/…", "/organization/<org>/cluster/<id>"},
		"layout of keys that belong to a cluster: <id>, <org>, and a trailing … (or ...) for anything below; repeatable")
}

// place is an opened source, and the connection when it is live.
type place struct {
	legacy.Source
	// live is nil for a snapshot.
	live *kube.ReadOnly
	// opts are those the source was opened with.
	opts legacy.Options
}

// open opens the snapshot, or connects to the management cluster. With inside, live clusters are also looked at from inside.
func (s *session) open(ctx context.Context, f sourceFlags, inside bool) (*place, error) {
	opts := legacy.Options{StorageConfig: f.storage}
	if f.from != "" {
		source, err := legacy.Open(ctx, f.from, opts)
		if err != nil {
			return nil, withHint(err, "name a directory or a .tar.gz file with Kubernetes objects in YAML or JSON")
		}
		s.atEnd(source.Close)
		return &place{Source: source}, nil
	}
	live, err := s.connect()
	if err != nil {
		return nil, err
	}
	opts.Definitions = definitionsOf(live)
	if inside {
		opts.WorkloadReader = s.workloadReader
	}
	source := legacy.NewLive(s.lists.over(live.Reader), live.Server, opts)
	s.atEnd(source.Close)
	return &place{Source: source, live: live, opts: opts}, nil
}

// definitionsOf asks a management cluster for its CustomResourceDefinitions.
func definitionsOf(live *kube.ReadOnly) func(context.Context) ([]legacy.CRD, error) {
	return func(ctx context.Context) ([]legacy.CRD, error) {
		found, err := live.Definitions(ctx)
		if err != nil {
			return nil, err
		}
		out := make([]legacy.CRD, len(found))
		for i, d := range found {
			out[i] = legacy.CRD{Name: d.Name, Labels: d.Labels, Versions: d.Served}
		}
		return out, nil
	}
}

func (s *session) kubeOptions() kube.Options {
	return kube.Options{Version: s.app.Version.Version, Log: s.log, Wrap: s.app.Wrap}
}

// connect makes the read-only connection to the management cluster.
func (s *session) connect() (*kube.ReadOnly, error) { return kube.Connect(s.kube, s.kubeOptions()) }

// namesWorkload tells that the flags name a way into the workload cluster.
func (s *session) namesWorkload() bool {
	return s.global.workloadKubeconfig != "" || s.global.workloadContext != ""
}

// workloadReader finds a way into a workload cluster: the one the flags name, else the kubeconfig of the legacy Secret. A cluster
// that is not reachable from here is normal and only noted; one that the flags name must answer.
func (s *session) workloadReader(ctx context.Context, cluster *legacy.Cluster) (client.Reader, error) {
	named := s.namesWorkload()
	config, err := s.workloadConfig(cluster, named)
	if config == nil && err == nil {
		return nil, nil
	}
	var inside *kube.ReadOnly
	if err == nil {
		opts := s.kubeOptions()
		opts.Timeout = insideTimeout
		inside, err = kube.ForConfig(config, opts)
	}
	if err == nil {
		ping, cancel := context.WithTimeout(ctx, reachTimeout)
		defer cancel()
		err = inside.Ping(ping)
	}
	switch {
	case err == nil:
		return inside.Reader, nil
	case named:
		return nil, err
	default:
		s.log.WithField("cluster", cluster.ID).WithField("err", err).
			Info("the workload cluster is not reachable from here, so its Nodes are unknown; --workload-kubeconfig names another way in")
		return nil, nil
	}
}

func (s *session) workloadConfig(cluster *legacy.Cluster, named bool) (*rest.Config, error) {
	if named {
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		rules.ExplicitPath = s.global.workloadKubeconfig
		overrides := &clientcmd.ConfigOverrides{CurrentContext: s.global.workloadContext}
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("reading the workload cluster's kubeconfig: %w", err)
		}
		return config, nil
	}
	if cluster.Kubeconfig == nil {
		return nil, nil
	}
	for _, key := range []string{"kubeConfig", "kubeconfig", "value"} {
		if text := cluster.Kubeconfig.Object.Data[key]; len(text) > 0 && !legacy.IsDigest(text) {
			return kube.ConfigFromSecret(text)
		}
	}
	return nil, nil
}

// finalized is the migration of a cluster of which nothing legacy is left; nil when there is none.
func (s *session) finalized(ctx context.Context, p *place, id string) (*migrationv1alpha1.ClusterMigration, error) {
	if p.live == nil {
		return nil, nil //nolint:nilnil // a snapshot is of before
	}
	return migrationThat(ctx, p.live.Reader, id, func(m *migrationv1alpha1.ClusterMigration) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, migrationv1alpha1.FinalizedCondition)
	})
}

// stillLegacy says of a named cluster that is not there any more that it is migrated to the end.
func (s *session) stillLegacy(ctx context.Context, p *place, args, ids []string) error {
	if len(args) != 1 || slices.Contains(ids, args[0]) {
		return nil
	}
	done, err := s.finalized(ctx, p, args[0])
	if err != nil || done == nil {
		return err
	}
	return withHint(fmt.Errorf("cluster %s is finalized: nothing of the legacy platform is left to look at", args[0]), "%s tells of its migration", s.repeat("migrate status "+args[0]))
}

// choose is chooseCluster for what was opened. A cluster that is not in the readable part of a damaged snapshot may be in the rest of it, so the answer is what could not be read.
func (p *place) choose(ctx context.Context, args, ids []string, several string) (string, error) {
	id, err := chooseCluster(args, ids, p.Describe(), p.live == nil, several)
	var wrong *UsageError
	if err == nil || errors.As(err, &wrong) || p.live != nil {
		return id, err
	}
	fleet, failed := p.Fleet(ctx)
	if failed != nil {
		return "", failed
	}
	unread, hint := unreadOf(fleet.Problems)
	switch {
	case unread == "":
		return "", err
	case len(args) == 1:
		return "", withHint(fmt.Errorf("looking for cluster %s in %s: it is not in what could be read%s\n%s", args[0], p.Describe(), didYouMean(args[0], ids), unread), "%s", hint)
	default:
		return "", withHint(fmt.Errorf("looking for clusters in %s: there are none in what could be read\n%s", p.Describe(), unread), "%s", hint)
	}
}

// whole fails with what could not be read of a snapshot.
func (p *place) whole(ctx context.Context) error {
	if p.live != nil {
		return nil
	}
	fleet, err := p.Fleet(ctx)
	if err != nil {
		return err
	}
	return damage("reading "+p.Describe(), fleet.Problems)
}

// damage is the error of something that is done with what could be read alone; nil where that is everything.
func damage(doing string, findings []finding.Finding) error {
	unread, hint := unreadOf(findings)
	if unread == "" {
		return nil
	}
	return withHint(fmt.Errorf("%s: not everything could be read\n%s", doing, unread), "%s", hint)
}

// unreadOf says in a line each what could not be read, and what to do about it; nothing where everything could. The end of an archive that was cut off is also a document that does
// not parse: that is no document to correct.
func unreadOf(findings []finding.Finding) (text, hint string) {
	const most = 5
	var lines []string
	for _, f := range findings {
		if f.Severity != finding.Error {
			continue
		}
		lines = append(lines, strings.TrimSpace(f.ID+" "+f.Message))
		if hint == "" || f.ID == legacy.ProblemArchiveDamaged {
			hint = first(f.Hint, "migrate explain "+f.ID)
		}
	}
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("and %d more", len(lines)-most))
	}
	return strings.Join(lines, "\n"), hint
}

// chooseCluster returns the cluster to work on: the one that is named, else the only one of a snapshot.
func chooseCluster(args, ids []string, where string, snapshot bool, several string) (string, error) {
	if len(args) == 1 && slices.Contains(ids, args[0]) {
		return args[0], nil
	}
	if len(args) == 1 && len(ids) > 0 {
		return "", withHint(fmt.Errorf("looking for cluster %s in %s: %w%s", args[0], where, legacy.ErrNotFound, didYouMean(args[0], ids)), "%s", listed(ids))
	}
	const cluster = "a cluster is a KVMConfig, a KVMClusterConfig, or a namespace with VM pods"
	switch {
	case len(args) == 1:
		return "", withHint(fmt.Errorf("looking for cluster %s in %s: %w, nor any other", args[0], where, legacy.ErrNotFound), cluster)
	case len(ids) == 0:
		return "", withHint(fmt.Errorf("looking for clusters in %s: there are none", where), cluster)
	case len(ids) == 1 && snapshot:
		return ids[0], nil
	default:
		return "", usage(several+listed(ids), "which cluster? %s has %s", where, count(len(ids), "cluster", "clusters"))
	}
}

// listed names clusters, as many as a line takes.
func listed(ids []string) string {
	const most = 12
	if len(ids) > most {
		return fmt.Sprintf("clusters: %s and %d more", strings.Join(ids[:most], ", "), len(ids)-most)
	}
	return "clusters: " + strings.Join(ids, ", ")
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// atMostOne accepts no more than one argument.
func atMostOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usage(cmd.CommandPath()+" --help", "only one %s can be given, not %d", what, len(args))
		}
		return nil
	}
}

// exactlyOne demands one argument.
func exactlyOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usage(cmd.CommandPath()+" --help", "exactly one %s must be given", what)
		}
		return nil
	}
}

// noArguments accepts none.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(cmd.CommandPath()+" --help", "unexpected argument %q", args[0])
	}
	return nil
}
