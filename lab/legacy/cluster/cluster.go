package cluster

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/operator"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacyguest/userdata"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

const (
	// ID of the cluster. The recordings are of this one.
	ID = "al9qy"
	// MaxWorkers is how many workers the recording has.
	MaxWorkers = 3
	// EtcdVolume is the volume of the master's etcd.
	EtcdVolume = "etcd-" + ID + "-0"
	// EtcdPath is the volume's directory on the first host.
	EtcdPath = "/var/lib/legacy-volumes/" + EtcdVolume
	// SpareEtcdVolume is one of the same kind that nobody has claimed: the platform's volumes are made by hand, and whoever replaces a master makes one more first.
	SpareEtcdVolume = "etcd-spare-0"
	// SpareEtcdPath is its directory, on the host of the machine that gets it.
	SpareEtcdPath = "/var/lib/legacy-volumes/" + SpareEtcdVolume
	// MountTag is the label of a worker's host volumes.
	MountTag = "mount-tag"

	recordedZone = ID + ".k8s.anubis.example.test"
	certOperator = "1.3.0"
)

// Size of a machine.
type Size struct {
	CPUs   int
	Memory string
	// DiskGB is the size of a worker's disks. A master's are always of 50 GB.
	DiskGB int
}

// Options describe a cluster.
type Options struct {
	// Testdata is the directory with the recordings: testdata of the working tree.
	Testdata string
	// Zone is the parent of the cluster's names.
	Zone string
	// Workers are between none and MaxWorkers.
	Workers int
	// WorkerHosts are the hosts that workers may run on: the host volumes are there.
	WorkerHosts []string
	// WithoutHostVolumes leaves the host volumes of the first worker out, so that nothing ties it to its host: its replacement may come before it goes.
	WithoutHostVolumes bool
	Master, Worker     Size
	// DNS and NTP servers of the machines.
	DNS, NTP string
	// CA signs everything; a new one when nil.
	CA  *pki.Authority
	Now time.Time
}

// Cluster is a legacy cluster that was not loaded yet.
type Cluster struct {
	opts Options

	// CA signs everything in the cluster. The real one is in a Vault.
	CA      *pki.Authority
	Objects []*unstructured.Unstructured
	// HostVolumes are the volumes of the first worker, and their directories on the hosts of workers.
	HostVolumes map[string]string
	// WorkerHosts are those of the options.
	WorkerHosts []string
	// Installation is what the operator has to be configured with.
	Installation desired.Installation

	config *desired.Config
	secret map[string]*corev1.Secret
	key    string
}

// New makes a cluster. Steps: read the recordings, choose and change; issue certificates; render bootstrap data.
func New(opts Options) (*Cluster, error) {
	if opts.Workers < 0 || opts.Workers > MaxWorkers {
		return nil, fmt.Errorf("making a legacy cluster with %d workers: the recording has %d", opts.Workers, MaxWorkers)
	}
	opts = opts.withDefaults()
	c := &Cluster{opts: opts, CA: opts.CA, secret: map[string]*corev1.Secret{}, HostVolumes: map[string]string{}, WorkerHosts: opts.WorkerHosts}
	c.Installation = desired.DefaultInstallation()
	c.Installation.DNSServers, c.Installation.NTPServers = opts.DNS, opts.NTP
	if c.CA == nil {
		ca, err := pki.NewAuthority("pki-"+ID, opts.Now)
		if err != nil {
			return nil, err
		}
		c.CA = ca
	}
	if err := c.makeKey(); err != nil {
		return nil, err
	}
	recorded, err := read(filepath.Join(opts.Testdata, "management-cluster"), filepath.Join(opts.Testdata, "fixtures", ID, "input"))
	if err != nil {
		return nil, err
	}
	// The first round has what the second one depends on.
	for _, round := range []bool{true, false} {
		for _, o := range recorded {
			early := o.GetKind() == desired.KindKVMConfig || o.GetKind() == desired.KindCertConfig
			if early != round {
				continue
			}
			if err := c.take(o); err != nil {
				return nil, fmt.Errorf("changing %s: %w", manifest.Describe(o), err)
			}
		}
	}
	return c, nil
}

func (o Options) withDefaults() Options {
	if o.Zone == "" {
		o.Zone = ID + ".k8s.lab.test"
	}
	if o.Master == (Size{}) {
		o.Master = Size{CPUs: 2, Memory: "2560M", DiskGB: 20}
	}
	if o.Worker == (Size{}) {
		o.Worker = Size{CPUs: 1, Memory: "1500M", DiskGB: 8}
	}
	if o.DNS == "" {
		o.DNS, o.NTP = "10.100.0.1", "10.100.0.1"
	}
	return o
}

func (c *Cluster) makeKey() error {
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return fmt.Errorf("making an encryption key: %w", err)
	}
	c.key = base64.StdEncoding.EncodeToString(raw)
	return nil
}

// read returns the objects below the directories, each once.
func read(dirs ...string) ([]*unstructured.Unstructured, error) {
	seen := map[string]bool{}
	var all []*unstructured.Unstructured
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil {
			return nil, fmt.Errorf("looking for recordings: %w", err)
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("looking for recordings: there are none in %s", dir)
		}
		for _, f := range files {
			found, err := manifest.ReadFile(f)
			if err != nil {
				return nil, err
			}
			for _, o := range found {
				if key := o.GetAPIVersion() + " " + manifest.Describe(o); !seen[key] {
					seen[key] = true
					all = append(all, o)
				}
			}
		}
	}
	return all, nil
}

// take adds a recorded object, changed to fit, or leaves it out.
func (c *Cluster) take(recorded *unstructured.Unstructured) error {
	o := recorded.DeepCopy()
	manifest.Strip(o)
	delete(o.Object, "status")
	switch o.GetKind() {
	case desired.KindKVMConfig:
		return c.takeConfig(o)
	case desired.KindCertConfig:
		return c.takeCertConfig(o)
	case desired.KindKVMClusterConfig:
		return c.takeClusterConfig(o)
	case desired.KindFlannelConfig:
		return c.takeFlannelConfig(o)
	case "StorageConfig":
		return c.takeStorageConfig(o)
	case "Secret":
		return c.takeSecret(o)
	case "ConfigMap":
		return c.takeConfigMap(o)
	case "PersistentVolume":
		return c.takeVolume(o)
	case "Namespace", "StorageClass", "Release", "ClusterRole", "ClusterRoleBinding", "ServiceAccount", manifest.CRDKind:
		return c.takeAsIs(o)
	default:
		return nil // Made by kvm-operator or by controllers, or of another management cluster.
	}
}

// takeAsIs takes what needs no change, but for what kvm-operator makes and default makes itself.
func (c *Cluster) takeAsIs(o *unstructured.Unstructured) error {
	switch o.GetKind() {
	case "ServiceAccount":
		if o.GetNamespace() != "giantswarm" {
			return nil
		}
		delete(o.Object, "secrets") // Of a time when every account had a token.
	case "ClusterRoleBinding":
		if strings.HasPrefix(o.GetName(), ID) {
			return nil
		}
	case "Namespace":
		if o.GetName() == "default" {
			return nil
		}
	}
	c.add(o)
	return nil
}

// add renames the recorded zone in every text of an object.
func (c *Cluster) add(o *unstructured.Unstructured) {
	renamed, ok := rename(o.Object, c.opts.Zone).(map[string]any)
	if ok {
		o.Object = renamed
	}
	c.Objects = append(c.Objects, o)
}

func rename(value any, zone string) any {
	switch v := value.(type) {
	case string:
		return strings.ReplaceAll(v, recordedZone, zone)
	case map[string]any:
		for k, x := range v {
			v[k] = rename(x, zone)
		}
	case []any:
		for i, x := range v {
			v[i] = rename(x, zone)
		}
	}
	return value
}

func set(o *unstructured.Unstructured, value any, path ...string) error {
	if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
		return fmt.Errorf("setting %s: %w", strings.Join(path, "."), err)
	}
	return nil
}

// first keeps the first n entries of a list and changes each.
func first(o *unstructured.Unstructured, n int, change func(map[string]any), path ...string) error {
	entries, _, err := unstructured.NestedSlice(o.Object, path...)
	if err != nil {
		return fmt.Errorf("reading %s: %w", strings.Join(path, "."), err)
	}
	if len(entries) < n {
		return fmt.Errorf("reading %s: it has %d entries, not %d", strings.Join(path, "."), len(entries), n)
	}
	entries = entries[:n]
	for _, e := range entries {
		if m, ok := e.(map[string]any); ok && change != nil {
			change(m)
		}
	}
	return set(o, entries, path...)
}

func (c *Cluster) takeConfig(o *unstructured.Unstructured) error {
	size := func(s Size) func(map[string]any) {
		return func(m map[string]any) {
			m["cpus"], m["memory"], m["disk"], m["dockerVolumeSizeGB"] = int64(s.CPUs), s.Memory, int64(s.DiskGB), int64(0)
			if c.opts.WithoutHostVolumes {
				delete(m, "hostVolumes")
			}
		}
	}
	n := int64(c.opts.Workers)
	for _, err := range []error{
		first(o, 1, size(c.opts.Master), "spec", "kvm", "masters"),
		first(o, c.opts.Workers, size(c.opts.Worker), "spec", "kvm", "workers"),
		first(o, c.opts.Workers, nil, "spec", "cluster", "workers"),
		set(o, map[string]any{"min": n, "max": n}, "spec", "cluster", "scaling"),
	} {
		if err != nil {
			return err
		}
	}
	c.add(o)
	config, err := desired.Read(o)
	c.config = config
	return err
}

func (c *Cluster) takeCertConfig(o *unstructured.Unstructured) error {
	c.add(o)
	secret, err := operator.Issue(c.CA, o, certOperator, c.opts.Now)
	if err != nil {
		return err
	}
	c.secret[secret.Name] = secret
	return nil
}

func (c *Cluster) takeClusterConfig(o *unstructured.Unstructured) error {
	size := func(s Size) (func(map[string]any), error) {
		gb, err := gigabytes(s.Memory)
		return func(m map[string]any) {
			m["cpuCores"], m["memorySizeGB"], m["storageSizeGB"] = int64(s.CPUs), gb, int64(s.DiskGB)
		}, err
	}
	master, err := size(c.opts.Master)
	if err != nil {
		return err
	}
	worker, err := size(c.opts.Worker)
	if err != nil {
		return err
	}
	if err := first(o, 1, master, "spec", "guest", "masters"); err != nil {
		return err
	}
	if err := first(o, c.opts.Workers, worker, "spec", "guest", "workers"); err != nil {
		return err
	}
	c.add(o)
	return nil
}

func (c *Cluster) takeFlannelConfig(o *unstructured.Unstructured) error {
	for kind, servers := range map[string]string{"dns": c.opts.DNS, "ntp": c.opts.NTP} {
		if err := set(o, []any{servers}, "spec", "bridge", "spec", kind, "servers"); err != nil {
			return err
		}
	}
	c.add(o)
	return nil
}

// takeStorageConfig keeps what cluster-service knows of this cluster, in the sizes it has here.
func (c *Cluster) takeStorageConfig(o *unstructured.Unstructured) error {
	data, _, err := unstructured.NestedStringMap(o.Object, "spec", "storage", "data")
	if err != nil {
		return fmt.Errorf("reading its data: %w", err)
	}
	maps.DeleteFunc(data, func(key, _ string) bool { return !strings.Contains(key, "/"+ID) })
	record := map[string]any{}
	key := "/cluster/" + ID + "/cluster"
	if err := json.Unmarshal([]byte(data[key]), &record); err != nil {
		return fmt.Errorf("reading the record of %s: %w", ID, err)
	}
	gb, err := gigabytes(c.opts.Worker.Memory)
	if err != nil {
		return err
	}
	workers, ok := record["workers"].([]any)
	if !ok || len(workers) < c.opts.Workers {
		return errors.New("reading the record: it has not all workers")
	}
	for _, w := range workers[:c.opts.Workers] {
		m, ok := w.(map[string]any)
		if !ok {
			return errors.New("reading the record: a worker is no object")
		}
		m["cpu"] = map[string]any{"cores": c.opts.Worker.CPUs}
		m["memory"] = map[string]any{"size_gb": gb}
		m["storage"] = map[string]any{"size_gb": c.opts.Worker.DiskGB}
	}
	record["workers"] = workers[:c.opts.Workers]
	record["scaling"] = map[string]any{"min": c.opts.Workers, "max": c.opts.Workers}
	raw, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encoding the record: %w", err)
	}
	data[key] = string(raw)
	if err := unstructured.SetNestedStringMap(o.Object, data, "spec", "storage", "data"); err != nil {
		return fmt.Errorf("setting its data: %w", err)
	}
	c.add(o)
	return nil
}

func (c *Cluster) takeSecret(o *unstructured.Unstructured) error {
	switch name := o.GetName(); {
	case c.secret[name] != nil:
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c.secret[name])
		if err != nil {
			return fmt.Errorf("encoding a Secret: %w", err)
		}
		fresh := &unstructured.Unstructured{Object: raw}
		fresh.SetAPIVersion("v1")
		fresh.SetKind("Secret")
		delete(raw, "status")
		unstructured.RemoveNestedField(raw, "metadata", "creationTimestamp")
		c.Objects = append(c.Objects, fresh)
		return nil
	case name == ID+"-encryption":
		if err := set(o, base64.StdEncoding.EncodeToString([]byte(c.key)), "data", "encryption"); err != nil {
			return err
		}
	case name == ID+"-kubeconfig":
		raw, err := c.kubeconfigOf("app-operator-api")
		if err != nil {
			return err
		}
		if err := set(o, base64.StdEncoding.EncodeToString(raw), "data", "kubeConfig"); err != nil {
			return err
		}
	default:
		return nil // Tokens, which the lab's controller manager does not know.
	}
	c.add(o)
	return nil
}

// kubeconfigOf uses the certificate of a component.
func (c *Cluster) kubeconfigOf(component string) ([]byte, error) {
	s := c.secret[ID+"-"+component]
	if s == nil {
		return nil, fmt.Errorf("making a kubeconfig: there is no certificate %s", component)
	}
	raw, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{ID: {Server: "https://api." + c.opts.Zone, CertificateAuthorityData: s.Data["ca"]}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{component: {ClientCertificateData: s.Data["crt"], ClientKeyData: s.Data["key"]}},
		Contexts:       map[string]*clientcmdapi.Context{ID: {Cluster: ID, AuthInfo: component}},
		CurrentContext: ID,
	})
	if err != nil {
		return nil, fmt.Errorf("encoding a kubeconfig: %w", err)
	}
	return raw, nil
}

// Kubeconfig is an administrator's for the workload cluster, to be used in the lab's network.
func (c *Cluster) Kubeconfig() ([]byte, error) { return c.kubeconfigOf("api") }

func (c *Cluster) takeConfigMap(o *unstructured.Unstructured) error {
	recorded, isNode, err := unstructured.NestedString(o.Object, "data", userdata.Key)
	switch {
	case err != nil:
		return fmt.Errorf("reading bootstrap data: %w", err)
	case !isNode && !strings.HasSuffix(o.GetName(), "-values"):
		return nil
	case !isNode:
		c.add(o)
		return nil
	case !slices.Contains((&desired.Input{Config: c.config}).ConfigMapNames(), o.GetName()):
		return nil // Of a worker this cluster does not have.
	}
	certificates := map[string]userdata.Certificate{}
	for name, s := range c.secret {
		certificates[strings.TrimPrefix(name, ID+"-")] = userdata.Certificate{CA: s.Data["ca"], Cert: s.Data["crt"], Key: s.Data["key"]}
	}
	fresh, err := userdata.Render(recorded, userdata.Options{
		Zone: c.opts.Zone, Certificates: certificates, EncryptionKey: c.key, Reserved: userdata.SmallMachine(), Typhas: c.opts.Workers,
		// Machines are slow without hardware virtualisation.
		Patient: true,
	})
	if err != nil {
		return err
	}
	if err := set(o, fresh, "data", userdata.Key); err != nil {
		return err
	}
	c.add(o)
	return nil
}

// takeVolume keeps etcd's volume, as a directory of the host in the place of an iSCSI disk, which no lab has, and the host volumes of the
// first worker.
func (c *Cluster) takeVolume(o *unstructured.Unstructured) error {
	spec, ok := o.Object["spec"].(map[string]any)
	if !ok {
		return errors.New("it has no specification")
	}
	delete(spec, "claimRef")
	o.SetAnnotations(nil)
	switch {
	case o.GetName() == EtcdVolume:
		delete(spec, "iscsi")
		spec["hostPath"] = map[string]any{"path": EtcdPath, "type": "DirectoryOrCreate"}
		spare := o.DeepCopy()
		spare.SetName(SpareEtcdVolume)
		if err := unstructured.SetNestedField(spare.Object, SpareEtcdPath, "spec", "hostPath", "path"); err != nil {
			return fmt.Errorf("making a spare volume: %w", err)
		}
		c.add(spare)
	case o.GetLabels()[MountTag] != "" && !c.opts.WithoutHostVolumes && c.opts.Workers > 0 && len(c.opts.WorkerHosts) > 0:
		path, _, err := unstructured.NestedString(spec, "local", "path")
		if err != nil || path == "" {
			return fmt.Errorf("reading its local path %q: %w", path, err)
		}
		c.HostVolumes[o.GetName()] = path
		if err := onHosts(spec, c.opts.WorkerHosts); err != nil {
			return err
		}
	default:
		return nil
	}
	c.Objects = append(c.Objects, o)
	return nil
}

// onHosts says where a local volume is. With several workers it is on all of their hosts: one of the others may have taken the host first,
// and then the worker with the volume would run nowhere.
func onHosts(spec map[string]any, hosts []string) error {
	values := make([]any, 0, len(hosts))
	for _, h := range hosts {
		values = append(values, h)
	}
	terms := []any{map[string]any{"matchExpressions": []any{map[string]any{"key": corev1.LabelHostname, "operator": "In", "values": values}}}}
	if err := unstructured.SetNestedSlice(spec, terms, "nodeAffinity", "required", "nodeSelectorTerms"); err != nil {
		return fmt.Errorf("setting its hosts: %w", err)
	}
	return nil
}

// gigabytes of a memory size, as the API services count them.
func gigabytes(memory string) (any, error) {
	var number float64
	var unit string
	if _, err := fmt.Sscanf(memory, "%f%s", &number, &unit); err != nil {
		return nil, fmt.Errorf("reading the memory size %q: %w", memory, err)
	}
	switch unit {
	case "G":
	case "M":
		number /= 1000
	default:
		return nil, fmt.Errorf("reading the memory size %q: it is neither in G nor in M", memory)
	}
	return number, nil
}

// Wanted are the objects that kvm-operator would make, for a lab in which none runs.
func (c *Cluster) Wanted() ([]*unstructured.Unstructured, error) {
	in := &desired.Input{Config: c.config, Installation: c.Installation}
	for _, o := range c.Objects {
		if o.GetKind() == desired.KindRelease && o.GetName() == "v"+c.config.Labels[desired.ReleaseVersionLabel] {
			components, err := desired.Components(o)
			if err != nil {
				return nil, err
			}
			in.Components = components
		}
	}
	deployments, err := in.Deployments()
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	add := func(apiVersion, kind string, typed any) error {
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
		if err != nil {
			return fmt.Errorf("encoding a %s: %w", kind, err)
		}
		delete(raw, "status")
		o := &unstructured.Unstructured{Object: raw}
		o.SetAPIVersion(apiVersion)
		o.SetKind(kind)
		unstructured.RemoveNestedField(raw, "metadata", "creationTimestamp")
		all = append(all, o)
		return nil
	}
	var errs []error
	errs = append(errs, add("v1", "Namespace", in.Namespace()), add("v1", "ServiceAccount", in.ServiceAccount()))
	for _, b := range in.ClusterRoleBindings() {
		errs = append(errs, add("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", b))
	}
	for _, p := range in.Claims() {
		errs = append(errs, add("v1", "PersistentVolumeClaim", p))
	}
	for _, d := range deployments {
		errs = append(errs, add("apps/v1", "Deployment", d))
	}
	for _, i := range in.Ingresses() {
		errs = append(errs, add("networking.k8s.io/v1", "Ingress", i))
	}
	for _, s := range in.Services() {
		errs = append(errs, add("v1", "Service", s))
	}
	return all, errors.Join(errs...)
}

// Write stores objects as files for package seed, and the authority's certificate and key beside them.
func (c *Cluster) Write(dir string, objects ...*unstructured.Unstructured) error {
	for _, sub := range []string{"objects", "ca"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return fmt.Errorf("making the cluster's directory: %w", err)
		}
	}
	if err := c.CA.Pair().Write(filepath.Join(dir, "ca"), "ca"); err != nil {
		return err
	}
	for i, o := range slices.Concat(c.Objects, objects) {
		raw, err := yaml.Marshal(o.Object)
		if err != nil {
			return fmt.Errorf("encoding %s: %w", manifest.Describe(o), err)
		}
		name := fmt.Sprintf("%03d-%s-%s.yaml", i, strings.ToLower(o.GetKind()), o.GetName())
		if err := os.WriteFile(filepath.Join(dir, "objects", name), raw, 0o600); err != nil {
			return fmt.Errorf("writing %s: %w", manifest.Describe(o), err)
		}
	}
	return nil
}
