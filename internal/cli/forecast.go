package cli

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/forecast"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

type forecastOptions struct {
	storage  sourceFlags
	outputs  outputs
	ns       string
	detailed bool
}

func (s *session) forecastCommand() *cobra.Command {
	var o forecastOptions
	cmd := &cobra.Command{
		Use:   "forecast CLUSTER",
		Short: "What Cluster API would do if nothing were paused",
		Long: `Looks at a Cluster, its KubeadmControlPlane and its MachineDeployments, and tells what their controllers would do if nothing of it were paused:
which Machines they would make, replace, delete or adopt and why, which etcd member would be removed, which Secret made, which add-on changed.
Cluster API's own code decides where it can be asked. Nothing is written.`,
		Example:           "  migrate forecast al9qy\n  migrate forecast al9qy --detailed-exitcode -o json",
		Args:              exactlyOne("cluster"),
		ValidArgsFunction: s.completeClusters(&o.storage, false),
		RunE:              func(cmd *cobra.Command, args []string) error { return s.forecast(cmd.Context(), o, args[0]) },
	}
	o.storage.addStorageTo(cmd)
	cmd.Flags().StringVar(&o.ns, "target-namespace", "", "namespace of the Cluster (default: the only one with a Cluster of that name)")
	cmd.Flags().BoolVar(&o.detailed, "detailed-exitcode", false, "exit with 2 when something would happen, or could")
	addOutputFlag(cmd, &o.outputs, plainFormats())
	return cmd
}

// forecast finds the Cluster, the ways into its inside, and prints what would happen.
func (s *session) forecast(ctx context.Context, o forecastOptions, id string) error {
	outs, err := o.outputs.resolved(plainFormats())
	if err != nil {
		return err
	}
	if err := checkNamespace(o.ns); err != nil {
		return err
	}
	live, err := s.connect()
	if err != nil {
		return err
	}
	scheme, err := forecast.Scheme()
	if err != nil {
		return err
	}
	management, err := live.Client(scheme)
	if err != nil {
		return err
	}
	key, err := s.clusterNamed(ctx, management, o.ns, id)
	if err != nil {
		return err
	}
	sources := forecast.Sources{Management: management, Now: s.now}
	if sources.Workload, err = s.insideOf(ctx, management, key); err != nil {
		return err
	}
	sources.Members = func(ctx context.Context) (etcd.Members, error) {
		legacy, _, err := s.etcdOf(ctx, o.storage, id)
		if err != nil {
			return etcd.Members{}, err
		}
		return legacy.Members(ctx)
	}
	found, err := forecast.Of(ctx, sources, key)
	if apierrors.IsNotFound(err) {
		return withHint(err, "kubectl get clusters.cluster.x-k8s.io -A")
	}
	if err != nil {
		return err
	}
	if err := s.printStructured(ctx, outs, found, func(w io.Writer) { writeForecast(w, found) }); err != nil {
		return err
	}
	if o.detailed && !found.Calm() {
		return ended(CodeChanges)
	}
	return nil
}

// clusterNamed finds a Cluster by its name.
func (s *session) clusterNamed(ctx context.Context, reader client.Reader, namespace, id string) (client.ObjectKey, error) {
	if namespace != "" {
		return client.ObjectKey{Namespace: namespace, Name: id}, nil
	}
	all := &clusterv1.ClusterList{}
	if err := reader.List(ctx, all, client.MatchingFields{"metadata.name": id}); err != nil {
		return client.ObjectKey{}, withHint(fmt.Errorf("looking for Cluster %s: %w", id, err), "name its namespace with --target-namespace")
	}
	switch len(all.Items) {
	case 0:
		return client.ObjectKey{}, withHint(fmt.Errorf("there is no Cluster %s: Cluster API does not know it yet", id), "%s", s.repeat("migrate plan "+id))
	case 1:
		return client.ObjectKeyFromObject(&all.Items[0]), nil
	default:
		return client.ObjectKey{}, usage("--target-namespace "+all.Items[0].Namespace, "there are %d Clusters %s, in different namespaces", len(all.Items), id)
	}
}

// insideOf reads the workload cluster: by the flags, else by the kubeconfig that Cluster API uses. Nil means that there is neither.
func (s *session) insideOf(ctx context.Context, management client.Reader, cluster client.ObjectKey) (client.Reader, error) {
	var config *rest.Config
	var err error
	if s.global.workloadKubeconfig != "" || s.global.workloadContext != "" {
		config, err = s.workloadConfig(nil, true)
	} else {
		if config, err = s.capiConfig(ctx, management, cluster); apierrors.IsNotFound(err) {
			return nil, nil //nolint:nilnil // no kubeconfig is an ordinary answer
		}
	}
	if err != nil {
		return nil, err
	}
	opts := s.kubeOptions()
	opts.Timeout = insideTimeout
	inside, err := kube.ForConfig(config, opts)
	if err != nil {
		return nil, err
	}
	if err := inside.Ping(ctx); err != nil {
		s.log.WithField("cluster", cluster.Name).WithField("err", err).Warn("the workload cluster cannot be reached")
		return nil, nil //nolint:nilnil // not reachable from here is an ordinary answer
	}
	return inside.Reader, nil
}

// capiConfig is the kubeconfig that Cluster API uses.
func (s *session) capiConfig(ctx context.Context, management client.Reader, cluster client.ObjectKey) (*rest.Config, error) {
	secret := &corev1.Secret{}
	name := client.ObjectKey{Namespace: cluster.Namespace, Name: cluster.Name + "-kubeconfig"}
	if err := management.Get(ctx, name, secret); err != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", name, err)
	}
	config, err := kube.ConfigFromSecret(secret.Data["value"])
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", name, err)
	}
	return config, nil
}

func writeForecast(w io.Writer, f *forecast.Forecast) {
	_, _ = fmt.Fprintf(w, "Cluster %s/%s, if nothing were paused:\n\n", f.Namespace, f.Cluster)
	switch {
	case f.Calm():
		_, _ = fmt.Fprintln(w, "nothing would happen")
	case len(f.Actions) == 0:
		_, _ = fmt.Fprintln(w, "nothing would happen, as far as could be found out")
	}
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, a := range f.Actions {
		_, _ = fmt.Fprintf(columns, "%s\t%s\t%s\t%s\n", printableText(a.Controller), a.Kind, printableText(a.Object), printableText(a.Reason))
	}
	_ = columns.Flush() // What w says, the caller hears from deliver.
	for _, u := range f.Unknown {
		_, _ = fmt.Fprintf(w, "\nunknown: %s\n", printableText(u))
	}
	for _, t := range f.Waits {
		_, _ = fmt.Fprintf(w, "\nwaits: %s\n", printableText(t))
	}
}
