package cli

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	"sigs.k8s.io/cluster-api/util/certs"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pki"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/roll"
)

// defaultEtcdPrefix is the prefix of legacy API servers, for snapshots without their cluster (legacy-system.md 6).
const defaultEtcdPrefix = "/giantswarm.io"

func (s *session) etcdCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "Look at a legacy cluster's etcd, and save it",
		Long: `Talks to a legacy cluster's etcd by its name through the ingress, with the certificate that Calico uses for it; and once Cluster API's control plane
has taken over, to its etcd through the API server, as its controller does. Nothing is changed and nothing restarted.`,
		Example: "  migrate etcd members al9qy\n  migrate etcd snapshot al9qy --out al9qy.db\n  migrate etcd verify al9qy.db",
		Args:    onlyBelow("command"),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(s.etcdMembersCommand(), s.etcdSnapshotCommand(), s.etcdVerifyCommand())
	return cmd
}

func (s *session) etcdMembersCommand() *cobra.Command {
	var source sourceFlags
	var outs outputs
	cmd := &cobra.Command{
		Use:               "members CLUSTER",
		Short:             "Show the member table",
		Long:              `Shows every member with its URLs, and what each member that can be reached says about itself: leader or learner, raft term and index, size of the database.`,
		Example:           "  migrate etcd members al9qy\n  migrate etcd members al9qy -o json",
		Args:              exactlyOne("cluster"),
		ValidArgsFunction: s.completeClusters(&source, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.etcdMembers(cmd.Context(), source, outs, args[0])
		},
	}
	source.addStorageTo(cmd)
	addOutputFlag(cmd, &outs, plainFormats())
	return cmd
}

func (s *session) etcdMembers(ctx context.Context, source sourceFlags, outs outputs, id string) error {
	resolved, err := outs.resolved(plainFormats())
	if err != nil {
		return err
	}
	client, _, err := s.etcdOf(ctx, source, id)
	if err != nil {
		return err
	}
	table, err := client.Table(ctx)
	if err != nil {
		return err
	}
	return s.printStructured(ctx, resolved, table, func(w io.Writer) { writeMembers(w, table) })
}

func writeMembers(w io.Writer, table *etcd.Table) {
	_, _ = fmt.Fprintf(w, "etcd cluster %s\n\n", table.Cluster)
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(columns, "NAME\tID\tROLE\tTERM\tINDEX\tAPPLIED\tSIZE\tVERSION\tPEER\tCLIENT")
	for _, m := range table.Members {
		said := []string{"-", "-", "-", "-", "-"}
		if m.Status != nil {
			said = []string{number(m.Status.RaftTerm), number(m.Status.RaftIndex), number(m.Status.Applied), byteSize(m.Status.Size), m.Status.Version}
		}
		_, _ = fmt.Fprintf(columns, "%s\t%s\t%s\t%s\t%s\t%s\n", dash(printableText(m.Name)), m.ID, m.Role, strings.Join(said, "\t"),
			dash(printableText(strings.Join(m.PeerURLs, ","))), dash(printableText(strings.Join(m.ClientURLs, ","))))
	}
	_ = columns.Flush() // What w says, the caller hears from deliver.
	for _, e := range table.Unread {
		_, _ = fmt.Fprintf(w, "\nnot read: %s\n", printableText(e))
	}
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// byteSize is a size for people.
func byteSize(n int64) string {
	const kib = 1 << 10
	switch {
	case n < kib:
		return fmt.Sprintf("%d B", n)
	case n < kib*kib:
		return fmt.Sprintf("%.1f KiB", float64(n)/kib)
	case n < kib*kib*kib:
		return fmt.Sprintf("%.1f MiB", float64(n)/kib/kib)
	default:
		return fmt.Sprintf("%.1f GiB", float64(n)/kib/kib/kib)
	}
}

func (s *session) etcdSnapshotCommand() *cobra.Command {
	var source sourceFlags
	var outs outputs
	var out string
	cmd := &cobra.Command{
		Use:   "snapshot CLUSTER --out FILE",
		Short: "Save etcd's database, and open it to see that it is whole",
		Long: `Writes etcd's database to a file, compares its checksum and reads every change in it. The file gets its name only after that.

It holds everything the cluster's API server keeps, Secrets encrypted as they are in etcd: keep it like a key. It can only be restored together with
the cluster's encryption key and certificates.`,
		Example:           "  migrate etcd snapshot al9qy --out al9qy.db",
		Args:              exactlyOne("cluster"),
		ValidArgsFunction: s.completeClusters(&source, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.etcdSnapshot(cmd.Context(), source, outs, args[0], out)
		},
	}
	source.addStorageTo(cmd)
	cmd.Flags().StringVar(&out, "out", "", "the file")
	onlyTyped(cmd, "out")
	addOutputFlag(cmd, &outs, plainFormats())
	return cmd
}

func (s *session) etcdSnapshot(ctx context.Context, source sourceFlags, outs outputs, id, out string) error {
	if out == "" {
		return usage("migrate etcd snapshot "+id+" --out FILE", "--out is missing: where should the snapshot go?")
	}
	resolved, err := outs.resolved(plainFormats())
	if err != nil {
		return err
	}
	if err := checkFolders(out); err != nil {
		return err
	}
	if _, err := os.Lstat(out); err == nil {
		return usage("migrate etcd snapshot "+id+" --out OTHER", "%s is there already, and a snapshot is never written over", out)
	}
	client, prefix, err := s.etcdOf(ctx, source, id)
	if err != nil {
		return err
	}
	endpoint, err := voter(ctx, client)
	if err != nil {
		return err
	}
	counter := newByteProgress(s.app.Err, "etcd's database", s.watched(), s.global.quiet, s.app.Clock.Now)
	saved, err := client.Save(ctx, endpoint, out, prefix, counter.written)
	counter.stop()
	if err != nil {
		return err
	}
	return s.printStructured(ctx, resolved, saved, func(w io.Writer) { writeSnapshot(w, saved) })
}

// voter is the first endpoint that answers and votes: the pod of a machine that goes is still there for a while, and a learner may be far behind.
func voter(ctx context.Context, client *etcd.Client) (string, error) {
	var all []error
	for _, name := range client.Endpoints() {
		status, err := client.Status(ctx, name)
		switch {
		case err != nil:
			all = append(all, err)
		case status.Learner:
			all = append(all, fmt.Errorf("etcd at %s is a learner", name))
		default:
			return name, nil
		}
	}
	return "", failure.Join(all...)
}

func (s *session) etcdVerifyCommand() *cobra.Command {
	var outs outputs
	var prefix string
	cmd := &cobra.Command{
		Use:     "verify FILE",
		Short:   "Open a saved database of etcd, and see that it is whole",
		Long:    "Compares the checksum of a snapshot and reads every change in it. Needs no connection.",
		Example: "  migrate etcd verify al9qy.db",
		Args:    exactlyOne("file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			resolved, err := outs.resolved(plainFormats())
			if err != nil {
				return err
			}
			saved, err := etcd.Verify(args[0], prefix)
			if err != nil {
				return err
			}
			return s.printStructured(cmd.Context(), resolved, saved, func(w io.Writer) { writeSnapshot(w, saved) })
		},
	}
	cmd.Flags().StringVar(&prefix, "etcd-prefix", defaultEtcdPrefix, "prefix of the API server's keys")
	addOutputFlag(cmd, &outs, plainFormats())
	return cmd
}

func writeSnapshot(w io.Writer, saved *etcd.Snapshot) {
	_, _ = fmt.Fprintf(w, "%s: verified, %s, revision %d, %s\nsha256 %s\n", saved.Path, byteSize(saved.Bytes), saved.Revision, count(saved.Keys, "key", "keys"), saved.SHA256)
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, kind := range saved.Kinds() {
		_, _ = fmt.Fprintf(columns, "%d\t  %s\n", saved.Resources[kind], printableText(kind))
	}
	_ = columns.Flush() // What w says, the caller hears from deliver.
}

// etcdOf makes a client of a cluster's etcd: the legacy master's, or that of Cluster API's control plane once it has taken over. prefix is that of the API
// server's keys.
func (s *session) etcdOf(ctx context.Context, source sourceFlags, id string) (client *etcd.Client, prefix string, err error) {
	p, err := s.open(ctx, source, false)
	if err != nil {
		return nil, "", err
	}
	if p.live != nil {
		object, err := s.takenOver(ctx, p.live.Reader, id)
		if err != nil {
			return nil, "", err
		}
		if object != nil {
			return s.newEtcd(ctx, p.live, ctrlclient.ObjectKeyFromObject(object))
		}
	}
	cluster, err := p.Load(ctx, id)
	if err != nil {
		return nil, "", err
	}
	if client, err = s.etcd(cluster); err != nil {
		return nil, "", withHint(fmt.Errorf("looking for the etcd of cluster %s: %w", id, err), "%s", s.repeat("migrate check "+id))
	}
	s.atEnd(client.Close)
	return client, etcdPrefix(cluster), nil
}

// takenOver is the migration of a cluster whose legacy control plane is gone, or has left etcd at least; nil when it is there.
func (s *session) takenOver(ctx context.Context, reader ctrlclient.Reader, id string) (*migrationv1alpha1.ClusterMigration, error) {
	return migrationThat(ctx, reader, id, func(m *migrationv1alpha1.ClusterMigration) bool {
		return migrate.Left(m) || meta.IsStatusConditionTrue(m.Status.Conditions, migrationv1alpha1.ControlPlaneReplacedCondition)
	})
}

// newEtcd makes a client of the etcd that a KubeadmControlPlane runs, as its controller does: a certificate that is kept nowhere, signed by the CA in Secret
// <cluster>-etcd, and a way to the port of a pod.
func (s *session) newEtcd(ctx context.Context, live *kube.ReadOnly, key ctrlclient.ObjectKey) (*etcd.Client, string, error) {
	config, err := s.capiConfig(ctx, live.Reader, key)
	if err != nil {
		return nil, "", err
	}
	inside := kube.Prepared(config, s.kubeOptions())
	read, err := kube.ForConfig(config, s.kubeOptions())
	if err != nil {
		return nil, "", err
	}
	pods := &corev1.PodList{}
	if err := read.Reader.List(ctx, pods, ctrlclient.InNamespace(metav1.NamespaceSystem), ctrlclient.MatchingLabels{"component": "etcd"}); err != nil {
		return nil, "", fmt.Errorf("listing the pods of etcd of cluster %s: %w", key, err)
	}
	if len(pods.Items) == 0 {
		return nil, "", fmt.Errorf("looking for the etcd of cluster %s: it has no pod with the label component=etcd", key)
	}
	secret := &corev1.Secret{}
	name := ctrlclient.ObjectKey{Namespace: key.Namespace, Name: key.Name + "-etcd"}
	if err := live.Reader.Get(ctx, name, secret); err != nil {
		return nil, "", fmt.Errorf("reading Secret %s: %w", name, err)
	}
	credentials, err := clientOf(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, "", fmt.Errorf("signing a certificate with the CA of Secret %s: %w", name, err)
	}
	endpoints := make([]etcd.Endpoint, 0, len(pods.Items))
	for i := range pods.Items {
		pod := pods.Items[i].Name
		endpoints = append(endpoints, etcd.Endpoint{URL: "https://" + net.JoinHostPort("127.0.0.1", etcdClientPort), Name: "pod " + pod, Address: pod + ":" + etcdClientPort})
	}
	dial := kube.PodDialer(inside)
	client, err := etcd.New(etcd.Options{Endpoints: endpoints, TLS: credentials, Timeout: roll.ThroughAPod, Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
		pod, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("reading the address %s: %w", address, err)
		}
		return dial(ctx, metav1.NamespaceSystem, pod, etcdClientNumber)
	}})
	if err != nil {
		return nil, "", err
	}
	s.atEnd(client.Close)
	prefix, err := newPrefix(ctx, live.Reader, key)
	return client, prefix, err
}

const (
	etcdClientPort   = "2379"
	etcdClientNumber = 2379
)

// clientOf signs a client certificate with a CA.
func clientOf(caCert, caKey []byte) (etcd.TLS, error) {
	authority, err := certs.DecodeCertPEM(caCert)
	if err != nil {
		return etcd.TLS{}, err
	}
	signer, err := certs.DecodePrivateKeyPEM(caKey)
	if err != nil {
		return etcd.TLS{}, err
	}
	if authority == nil || signer == nil {
		return etcd.TLS{}, pki.ErrNoCertificate
	}
	key, err := certs.NewPrivateKey()
	if err != nil {
		return etcd.TLS{}, err
	}
	wanted := certs.Config{CommonName: "migrate", Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	certificate, err := wanted.NewSignedCert(key, authority, signer)
	if err != nil {
		return etcd.TLS{}, err
	}
	return etcd.TLS{CA: caCert, Cert: certs.EncodeCertPEM(certificate), Key: certs.EncodePrivateKeyPEM(key)}, nil
}

// newPrefix is what the API servers of a KubeadmControlPlane put before their keys.
func newPrefix(ctx context.Context, reader ctrlclient.Reader, key ctrlclient.ObjectKey) (string, error) {
	k := &unstructured.Unstructured{}
	k.SetGroupVersionKind(controlplanev1.GroupVersion.WithKind("KubeadmControlPlane"))
	if err := reader.Get(ctx, key, k); err != nil {
		return "", fmt.Errorf("reading KubeadmControlPlane %s: %w", key, err)
	}
	arguments, _, err := unstructured.NestedSlice(k.Object, "spec", "kubeadmConfigSpec", "clusterConfiguration", "apiServer", "extraArgs")
	if err != nil {
		return "", fmt.Errorf("reading KubeadmControlPlane %s: %w", key, err)
	}
	for _, a := range arguments {
		if argument, ok := a.(map[string]any); ok && argument["name"] == "etcd-prefix" {
			value, _ := argument["value"].(string)
			return "/" + strings.Trim(value, "/"), nil
		}
	}
	return defaultEtcdPrefix, nil
}
