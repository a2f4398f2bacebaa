package migrationtest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/ingress"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/seed"
)

const (
	// MaxWorkers is how many workers a cluster can have: one per host.
	MaxWorkers = 14
	// recorded is the fixture all clusters are made of.
	recorded = "al9qy"
	// dnsZone is the zone of the recorded management cluster.
	dnsZone = "k8s.anubis.example.test"

	seedLimit = 2 * time.Minute
)

// ClusterOptions say what a legacy cluster looks like. The zero value is one
// master and one worker, healthy, with a workload cluster that answers.
type ClusterOptions struct {
	// Workers is their number, up to MaxWorkers; one when zero.
	Workers int
	// Organization is its owner, whose name is part of the namespace of Cluster
	// API objects; by default one that owns no other cluster.
	Organization string
	// NoWorkload leaves out the workload cluster's API server, which takes the
	// most time and memory. Its name then leads nowhere.
	NoWorkload bool
	// Etcd lets the workload cluster's etcd be asked by its name, as that of a
	// legacy master is.
	Etcd bool
	// LegacyEtcd has it, and that of machines that join it, be of the legacy version.
	LegacyEtcd bool
	// Edit may change the recorded objects before they are created, to make
	// what is wrong with a cluster. It is called for the management cluster's
	// objects and for the workload cluster's.
	Edit func(o *unstructured.Unstructured)
}

// Cluster is a healthy legacy cluster in the management cluster, as the legacy
// operators left it: al9qy with names of its own. The operators are gone, and
// nobody writes.
type Cluster struct {
	// ID is the cluster's id, and the namespace of its VMs' pods.
	ID string
	// Organization owns it; Namespace is where its Cluster API objects belong.
	Organization, Namespace string
	// APIDomain is the name of its API, which is served on port 443.
	APIDomain string
	// CACert and CAKey are its certificate authority in PEM, made for this
	// cluster alone. CACertFile and CAKeyFile hold the same.
	CACert, CAKey         []byte
	CACertFile, CAKeyFile string
	// Master is the name of the master's pod and Node, Workers are those of the
	// workers in the order of KVMConfig.
	Master  string
	Workers []string
	// Workload is the workload cluster; nil with NoWorkload.
	Workload *API

	world  *World
	number int
	dir    string
	etcd   bool
	// api and etcdName are what the cluster's names lead to.
	api, etcdName backends
	// objects of the management cluster, as recorded.
	objects []*unstructured.Unstructured
}

// Cluster makes a legacy cluster. Its workload cluster ends with the test; its
// objects stay in the management cluster, paused if Cluster API knows them.
func (w *World) Cluster(tb testing.TB, opts ClusterOptions) *Cluster {
	tb.Helper()
	if w == nil {
		tb.Skip("needs a management cluster, and there is none with -short")
	}
	number := w.next()
	opts.Workers, opts.Organization = max(opts.Workers, 1), cmp.Or(opts.Organization, "acme"+strconv.Itoa(number))
	require.LessOrEqual(tb, opts.Workers, MaxWorkers)
	ctx, cancel := context.WithTimeout(tb.Context(), seedLimit)
	defer cancel()

	c := &Cluster{world: w, number: number, dir: tb.TempDir(), etcd: opts.Etcd}
	require.NoError(tb, c.render(ctx, opts))
	if !opts.NoWorkload {
		require.NoError(tb, c.startWorkload(ctx, opts.LegacyEtcd))
		tb.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
			defer cancel()
			c.world.names.set(c.APIDomain, netip.Addr{})
			c.world.names.set(c.etcdDomain(), netip.Addr{})
			require.NoError(tb, c.Workload.Stop(ctx))
		})
	}
	// Runs before the workload cluster ends.
	tb.Cleanup(func() {
		c.pause(tb)
		c.leave(tb)
	})
	require.NoError(tb, c.seed(ctx))
	return c
}

// render makes the cluster's files. Steps: the fleet's generator writes lists;
// they become the YAML that is loaded, after Edit.
func (c *Cluster) render(ctx context.Context, opts ClusterOptions) error {
	// Odd numbers are made of another recording.
	command := exec.CommandContext(ctx, c.world.fleet, "-n", "1", "-first", strconv.Itoa(2*c.number), "-fresh-ca",
		"-organization", opts.Organization, "-workers", strconv.Itoa(opts.Workers), "-base", filepath.Join(c.world.source, "testdata", "fixtures"), "-o", c.dir)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("making a legacy cluster: %w\n%s", err, out)
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return fmt.Errorf("looking at the legacy cluster just made: %w", err)
	}
	for _, entry := range entries {
		if entry.Name() != "management-cluster" {
			c.ID = entry.Name()
		}
	}
	c.APIDomain = "api." + c.ID + "." + dnsZone
	c.CACertFile, c.CAKeyFile = filepath.Join(c.dir, c.ID, "ca", "ca.crt"), filepath.Join(c.dir, c.ID, "ca", "ca.key")
	if c.CACert, err = os.ReadFile(c.CACertFile); err != nil {
		return fmt.Errorf("reading the CA: %w", err)
	}
	if c.CAKey, err = os.ReadFile(c.CAKeyFile); err != nil {
		return fmt.Errorf("reading the CA: %w", err)
	}
	if err := c.renderInside(); err != nil {
		return err
	}
	if err := convert(c.dir, func(o *unstructured.Unstructured) error {
		if opts.Edit != nil {
			opts.Edit(o)
		}
		return errors.Join(widen(o), askGateway(o))
	}); err != nil {
		return err
	}
	return c.describe()
}

// askGateway gives a node's machine the name server that is there, instead of the recorded ones: its pod and what makes it, or it would be made again.
func askGateway(o *unstructured.Unstructured) error {
	at := []string{"spec", "template", "spec", "containers"}
	switch o.GetKind() {
	case "Deployment", "ReplicaSet":
	case "Pod":
		at = []string{"spec", "containers"}
	default:
		return nil
	}
	containers, _, err := unstructured.NestedSlice(o.Object, at...)
	if err != nil {
		return fmt.Errorf("reading the containers of %s: %w", manifest.Describe(o), err)
	}
	for _, container := range containers {
		variables, _ := container.(map[string]any)["env"].([]any) // The last containers have none.
		for _, variable := range variables {
			if v, ok := variable.(map[string]any); ok && v["name"] == "DNS_SERVERS" {
				v["value"] = labnet.Gateway
			}
		}
	}
	return unstructured.SetNestedSlice(o.Object, containers, at...)
}

// widen makes a host large enough for every cluster of a test binary: their pods stay as long as the world does, and a recorded
// host holds sixteen, after which no test would find room for a new control plane.
func widen(o *unstructured.Unstructured) error {
	if o.GetKind() != "Node" || !hosts.MatchString(o.GetName()) {
		return nil
	}
	for _, amount := range []string{"allocatable", "capacity"} {
		for name, value := range map[string]string{"cpu": "1024", "memory": "8Ti"} {
			if err := unstructured.SetNestedField(o.Object, value, "status", amount, name); err != nil {
				return fmt.Errorf("widening host %s: %w", o.GetName(), err)
			}
		}
	}
	return nil
}

// renderInside adds what the workload cluster's users may do: the generator
// makes only its Nodes.
func (c *Cluster) renderInside() error {
	for _, name := range []string{"rbac.yaml", "priorityclasses.yaml"} {
		raw, err := os.ReadFile(filepath.Join(c.world.source, "testdata", "fixtures", recorded, "input", "workload-cluster", name))
		if err != nil {
			return fmt.Errorf("reading the recorded workload cluster: %w", err)
		}
		raw = bytes.ReplaceAll(raw, []byte(recorded), []byte(c.ID))
		if err := os.WriteFile(filepath.Join(c.dir, c.ID, "workload-cluster", name), raw, 0o600); err != nil { //nolint:gosec // names of a fixture
			return fmt.Errorf("writing the workload cluster: %w", err)
		}
	}
	return nil
}

// convert writes every file below dir with objects as a YAML stream, edited.
func convert(dir string, edit func(*unstructured.Unstructured) error) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".json", ".yaml"}, filepath.Ext(path)) {
			return err
		}
		objects, err := manifest.ReadFile(path)
		if err != nil {
			return err
		}
		var stream bytes.Buffer
		for _, o := range objects {
			if err := edit(o); err != nil {
				return err
			}
			text, err := json.Marshal(o.Object)
			if err != nil {
				return fmt.Errorf("encoding %s: %w", manifest.Describe(o), err)
			}
			stream.WriteString("---\n")
			stream.Write(text)
			stream.WriteString("\n")
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("converting objects: %w", err)
		}
		if err := os.WriteFile(strings.TrimSuffix(path, filepath.Ext(path))+".yaml", stream.Bytes(), 0o600); err != nil {
			return fmt.Errorf("converting objects: %w", err)
		}
		return nil
	})
}

// describe fills in what the objects say about the cluster.
func (c *Cluster) describe() error {
	var err error
	if c.objects, err = manifest.ReadDir(filepath.Join(c.dir, c.ID)); err != nil {
		return err
	}
	pods := map[string]string{}
	for _, o := range c.objects {
		switch o.GetKind() {
		case "KVMConfig":
			c.Organization = o.GetLabels()["giantswarm.io/organization"]
		case "Pod":
			pods[o.GetLabels()["node"]] = o.GetName()
		}
	}
	c.Namespace = check.TargetNamespace(c.Organization)
	config, err := c.find("KVMConfig", c.ID)
	if err != nil {
		return err
	}
	for _, role := range []string{"masters", "workers"} {
		nodes, _, err := unstructured.NestedSlice(config.Object, "spec", "cluster", role)
		if err != nil {
			return fmt.Errorf("reading the nodes of %s: %w", c.ID, err)
		}
		for _, node := range nodes {
			id, _, err := unstructured.NestedString(node.(map[string]any), "id") //nolint:forcetypeassert // The schema says so.
			if err != nil {
				return fmt.Errorf("reading the nodes of %s: %w", c.ID, err)
			}
			if role == "masters" {
				c.Master = pods[id]
			} else {
				c.Workers = append(c.Workers, pods[id])
			}
		}
	}
	return nil
}

// find returns a recorded object of the management cluster.
func (c *Cluster) find(kind, name string) (*unstructured.Unstructured, error) {
	for _, o := range c.objects {
		if o.GetKind() == kind && o.GetName() == name {
			return o, nil
		}
	}
	return nil, fmt.Errorf("looking for %s/%s of cluster %s: it is not among the recorded objects", kind, name, c.ID)
}

// secretValue returns a value of a recorded Secret.
func (c *Cluster) secretValue(name, key string) ([]byte, error) {
	o, err := c.find("Secret", name)
	if err != nil {
		return nil, err
	}
	var secret corev1.Secret
	if err := into(o, &secret); err != nil {
		return nil, err
	}
	return secret.Data[key], nil
}

func into(o *unstructured.Unstructured, typed any) error {
	raw, err := json.Marshal(o.Object)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", manifest.Describe(o), err)
	}
	if err := json.Unmarshal(raw, typed); err != nil {
		return fmt.Errorf("decoding %s: %w", manifest.Describe(o), err)
	}
	return nil
}

// seed loads the cluster into the management cluster. Steps: everything of the
// cluster; cluster-service's record of it, which lies in an object that all
// clusters share.
func (c *Cluster) seed(ctx context.Context) error {
	dirs := []string{filepath.Join(c.dir, "management-cluster"), filepath.Join(c.dir, c.ID)}
	options := seed.Options{ControllerManager: true, SkipServiceAccountTokens: true, Log: c.world.log}
	if _, err := seed.Load(ctx, c.world.Management.Config(), dirs, options); err != nil {
		return fmt.Errorf("loading cluster %s: %w", c.ID, err)
	}
	// Not earlier: it would start pods that are still without their recorded status.
	c.world.kubelet.watch(c.ID)
	records, err := manifest.ReadFile(filepath.Join(c.dir, "management-cluster", "storageconfigs.yaml"))
	if err != nil {
		return err
	}
	for _, record := range records {
		patch, err := json.Marshal(map[string]any{"spec": record.Object["spec"]})
		if err != nil {
			return fmt.Errorf("encoding the record of %s: %w", c.ID, err)
		}
		if err := c.world.Management.Client().Patch(ctx, record, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return fmt.Errorf("recording cluster %s: %w", c.ID, err)
		}
	}
	return c.waitQuiet(ctx)
}

// waitQuiet returns when the management cluster's controllers have nothing more
// to do for the cluster: Deployments count their pods as available, and Endpoints are mirrored.
func (c *Cluster) waitQuiet(ctx context.Context) error {
	api := c.world.Management.Client()
	return until(ctx, "the Deployments of "+c.ID+" are available", seedLimit, func() (bool, error) {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("apps/v1")
		list.SetKind("DeploymentList")
		if err := api.List(ctx, list, client.InNamespace(c.ID)); err != nil {
			return false, err
		}
		for _, o := range list.Items {
			available, _, err := unstructured.NestedInt64(o.Object, "status", "availableReplicas")
			if err != nil || available != 1 {
				return false, err
			}
		}
		if len(list.Items) == 0 {
			return false, nil
		}
		// The controllers mirror Endpoints as well, and whoever compares states must not see that happen.
		mirrored := &discoveryv1.EndpointSliceList{}
		if err := api.List(ctx, mirrored, client.InNamespace(c.ID)); err != nil {
			return false, err
		}
		of := map[string]bool{}
		for i := range mirrored.Items {
			of[mirrored.Items[i].Labels[discoveryv1.LabelServiceName]] = true
		}
		services := &corev1.ServiceList{}
		if err := api.List(ctx, services, client.InNamespace(c.ID)); err != nil {
			return false, err
		}
		endpoints := &unstructured.UnstructuredList{}
		endpoints.SetAPIVersion("v1")
		endpoints.SetKind("EndpointsList")
		if err := api.List(ctx, endpoints, client.InNamespace(c.ID)); err != nil {
			return false, err
		}
		for i := range services.Items {
			own := func(u unstructured.Unstructured) bool { return u.GetName() == services.Items[i].Name }
			if len(services.Items[i].Spec.Selector) == 0 && slices.ContainsFunc(endpoints.Items, own) && !of[services.Items[i].Name] {
				return false, nil
			}
		}
		return true, nil
	})
}

// startWorkload starts the workload cluster. Steps: etcd and API server with
// the cluster's own authority and the certificate the legacy API server shows;
// its name; what was inside: rights and Nodes.
func (c *Cluster) startWorkload(ctx context.Context, legacyEtcd bool) error {
	authority, err := pki.LoadAuthority(c.CACert, c.CAKey, time.Now())
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "migrationtest-"+c.ID+"-")
	if err != nil {
		return fmt.Errorf("making a directory: %w", err)
	}
	serving := pki.Pair{}
	if serving.Cert, err = c.secretValue(c.ID+"-api", "crt"); err == nil {
		serving.Key, err = c.secretValue(c.ID+"-api", "key")
	}
	if err == nil {
		err = serving.Write(dir, "api")
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	own := machineAddress(masters, c.number)
	peer := "https://" + net.JoinHostPort(own.String(), "2380")
	etcd, err := authority.Issue(pki.Names{
		CommonName: "etcd", DNS: []string{"localhost", c.etcdDomain()}, IPs: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(machineGateway), own},
	})
	if err == nil {
		err = etcd.Write(dir, "etcd")
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	programs, err := workloadPrograms(legacyEtcd)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	c.Workload, err = startAPI(ctx, dir, mc.Options{
		Builder: programs, Authority: authority, ServiceCIDR: "172.31.0.0/16",
		ExtraArgs: map[string][]string{
			builder.APIServer: {
				"--etcd-prefix=giantswarm.io",
				// The legacy API server comes to kubelets as nobody (legacy-system.md 6.2).
				"--kubelet-client-certificate=", "--kubelet-client-key=",
				"--tls-sni-cert-key=" + filepath.Join(dir, "api.crt") + "," + filepath.Join(dir, "api.key") + ":" + c.APIDomain,
			},
			builder.Etcd: {
				"--cert-file=" + filepath.Join(dir, "etcd.crt"), "--key-file=" + filepath.Join(dir, "etcd.key"),
				"--peer-cert-file=" + filepath.Join(dir, "etcd.crt"), "--peer-key-file=" + filepath.Join(dir, "etcd.key"),
				"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=lab=" + peer,
				// Members that are added have the same. A quarter of a second, as alone, is no time on a busy machine: whoever got no processor lost the lead.
				"--heartbeat-interval=100", "--election-timeout=1500",
			},
		},
	})
	if err != nil {
		return fmt.Errorf("starting the workload cluster of %s: %w", c.ID, err)
	}
	if err := errors.Join(c.publish(ctx), c.fill(ctx)); err != nil {
		return errors.Join(err, c.Workload.Stop(context.WithoutCancel(ctx)))
	}
	return nil
}

// workloadPrograms are the lab's own, or those with etcd of the legacy version.
func workloadPrograms(legacyEtcd bool) (*builder.Builder, error) {
	components := builder.Default()
	if legacyEtcd {
		old, isEtcd := builder.Legacy(), func(c builder.Component) bool { return c.Name == builder.Etcd }
		components[slices.IndexFunc(components, isEtcd)] = old[slices.IndexFunc(old, isEtcd)]
	}
	return builder.New(builder.Options{Out: os.Stderr, Components: components})
}

// etcdDomain is the name of the cluster's etcd.
func (c *Cluster) etcdDomain() string { return "etcd." + c.ID + "." + dnsZone }

// publish makes the API reachable by its name on port 443, and etcd if somebody
// wants it.
func (c *Cluster) publish(ctx context.Context) error {
	c.api.set(strings.TrimPrefix(c.Workload.URL(), "https://"))
	if err := c.publishAs(ctx, 1, c.APIDomain, &c.api); err != nil || !c.etcd {
		return err
	}
	url, _, _, _ := c.Workload.EtcdClientFiles()
	c.etcdName.set(strings.TrimPrefix(url, "https://"))
	return c.publishAs(ctx, 2, c.etcdDomain(), &c.etcdName)
}

// publishAs serves a name at an address of its own. What arrives there goes where its handshake wants it to, as with one ingress for all.
func (c *Cluster) publishAs(ctx context.Context, network byte, name string, behind *backends) error {
	address := netip.AddrFrom4([4]byte{127, network, byte(c.number >> 8), byte(c.number)}) //nolint:gosec // Both halves of a small number.
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(address.String(), "443"))
	if err != nil {
		return fmt.Errorf("publishing %s: %w", name, err)
	}
	// Lives as long as the process: the name, not the address, is what a test ends.
	go func() {
		server := &ingress.Server{Finder: front{name, behind, c.world.routes}, Log: c.world.log, Clock: clock.RealClock{}}
		if err := server.Serve(context.WithoutCancel(ctx), listener); err != nil {
			c.world.log.WithError(err).Errorf("nobody reaches %s any more", name)
		}
	}()
	c.world.names.set(name, address)
	return nil
}

// front finds who answers to a name: the backends of the cluster's own, and for any other those that an Ingress says.
type front struct {
	name   string
	behind *backends
	routes *ingress.Routes
}

func (f front) Backends(host string) ([]ingress.Backend, error) {
	if host == "" || host == f.name {
		return []ingress.Backend{{Address: f.behind.next()}}, nil
	}
	return f.routes.Backends(host)
}

func (f front) Exists(ingress.Backend) bool { return true }

// backends are the addresses behind a name, which take turns.
type backends struct {
	mu  sync.Mutex
	all []string
	at  int
}

func (b *backends) set(all ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = all
}

// next is the one whose turn it is; nobody listens on port 1.
func (b *backends) next() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.all) == 0 {
		return "127.0.0.1:1"
	}
	b.at++
	return b.all[b.at%len(b.all)]
}

// fill creates what was inside the workload cluster.
func (c *Cluster) fill(ctx context.Context) error {
	objects, err := manifest.ReadDir(filepath.Join(c.dir, c.ID, "workload-cluster"))
	if err != nil {
		return err
	}
	return manifest.Each(ctx, objects, func(ctx context.Context, o *unstructured.Unstructured) error {
		manifest.Strip(o)
		status := o.Object["status"]
		if err := c.Workload.Client().Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %s in the workload cluster: %w", manifest.Describe(o), err)
		}
		if o.GetKind() != "Node" {
			return nil
		}
		patch, err := json.Marshal(map[string]any{"status": status})
		if err != nil {
			return fmt.Errorf("encoding the status of %s: %w", manifest.Describe(o), err)
		}
		if err := c.Workload.Client().Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return fmt.Errorf("writing the status of %s: %w", manifest.Describe(o), err)
		}
		return nil
	})
}

// Answers are the decisions that a human has to take for every cluster of this
// kind, before translate lets it pass.
func (c *Cluster) Answers() map[string]finding.Answer {
	return map[string]finding.Answer{"spec.cluster.docker.daemon.cidr": {Value: "drop", Reason: "containerd needs none"}}
}

// Acceptances are the checks that a human has to accept for every cluster of
// this kind, before it may be migrated.
func (c *Cluster) Acceptances() []check.Accepted {
	accepted := []check.Accepted{
		{ID: "CHK-CP-001", Reason: "one master is all there is"},
		{ID: "CHK-VM-007", Reason: "host volumes stay on their host"},
		{ID: "CHK-ETCD-014", Reason: "nothing mounts volumes here"},
	}
	if !c.etcd {
		accepted = append(accepted, check.Accepted{ID: "CHK-ETCD-001", Reason: "nobody can ask this cluster's etcd"})
	}
	return accepted
}

// Source is the management cluster as the product sees it, the inside of
// workload clusters included. Every call makes a new one: a source shows one
// moment.
func (w *World) Source(tb testing.TB) legacy.Source {
	tb.Helper()
	connected, err := kube.ForConfig(w.Management.As(tb, "looker", "system:masters"), kube.Options{Version: "migrationtest"})
	require.NoError(tb, err)
	return legacy.NewLive(connected.Reader, "migrationtest", legacy.Options{
		WorkloadReader: func(_ context.Context, cluster *legacy.Cluster) (client.Reader, error) {
			if cluster.Kubeconfig == nil {
				return nil, errors.New("the cluster has no kubeconfig")
			}
			config, err := kube.ConfigFromSecret(cluster.Kubeconfig.Object.Data["kubeConfig"])
			if err != nil {
				return nil, err
			}
			inside, err := kube.ForConfig(config, kube.Options{Version: "migrationtest"})
			if err != nil {
				return nil, err
			}
			return inside.Reader, nil
		},
	})
}

// Picture is the cluster as legacy.Load sees it now.
func (c *Cluster) Picture(tb testing.TB) *legacy.Cluster {
	tb.Helper()
	source := c.world.Source(tb)
	picture, err := source.Load(tb.Context(), c.ID)
	require.NoError(tb, err)
	require.NoError(tb, source.Close())
	return picture
}

// Pods returns the VMs' pods by the id of their node.
func (c *Cluster) Pods(tb testing.TB) map[string]corev1.Pod {
	tb.Helper()
	var list corev1.PodList
	require.NoError(tb, c.world.Client.List(tb.Context(), &list, client.InNamespace(c.ID)))
	pods := map[string]corev1.Pod{}
	for _, p := range list.Items {
		pods[p.Labels["node"]] = p
	}
	return pods
}

// Inside is the way into the workload cluster by its name, as its users have it.
func (c *Cluster) Inside(tb testing.TB, user string, groups ...string) *rest.Config {
	tb.Helper()
	config := c.Workload.As(tb, user, groups...)
	config.Host = "https://" + c.APIDomain
	return config
}

// Nodes returns the workload cluster's Nodes by name.
func (c *Cluster) Nodes(tb testing.TB) map[string]corev1.Node {
	tb.Helper()
	inside, err := client.New(c.Inside(tb, "looker", "system:masters"), client.Options{Scheme: c.world.Client.Scheme()})
	require.NoError(tb, err)
	var list corev1.NodeList
	require.NoError(tb, inside.List(tb.Context(), &list))
	nodes := map[string]corev1.Node{}
	for _, n := range list.Items {
		nodes[n.Name] = n
	}
	return nodes
}

// names of all VMs, the master first.
func (c *Cluster) vms() []string { return append([]string{c.Master}, c.Workers...) }

// pause keeps Cluster API's controllers from asking for a workload cluster that
// is about to end.
func (c *Cluster) pause(tb testing.TB) {
	tb.Helper()
	c.world.kubelet.forget(c.ID)
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = c.Namespace, c.ID
	err := c.world.Client.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":true}}`)))
	require.NoError(tb, client.IgnoreNotFound(err))
}

// leave removes what the cluster has where others have theirs: whoever examines one of those lists it each time, and of the tests of a binary
// the last ones would list fifty clusters.
func (c *Cluster) leave(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	for _, kind := range []schema.GroupVersionKind{
		{Group: "provider.giantswarm.io", Version: "v1alpha1", Kind: "KVMConfig"},
		{Group: "core.giantswarm.io", Version: "v1alpha1", Kind: "KVMClusterConfig"},
		{Group: "core.giantswarm.io", Version: "v1alpha1", Kind: "CertConfig"},
		{Group: "core.giantswarm.io", Version: "v1alpha1", Kind: "FlannelConfig"},
		{Version: "v1", Kind: "Secret"},
	} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		require.NoError(tb, c.world.Client.List(ctx, list, client.InNamespace(metav1.NamespaceDefault)))
		for i := range list.Items {
			o := &list.Items[i]
			if !c.has(o) {
				continue
			}
			o.SetGroupVersionKind(kind)
			if len(o.Finalizers) > 0 {
				err := c.world.Client.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
				require.NoError(tb, client.IgnoreNotFound(err))
			}
			require.NoError(tb, client.IgnoreNotFound(c.world.Client.Delete(ctx, o)))
		}
	}
}
