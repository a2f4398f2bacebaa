package operator

import (
	"context"
	"crypto/sha1" //nolint:gosec // The annotation is defined with it.
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

const (
	clusterFinalizer = "cluster-operator"
	certFinalizer    = "cert-operator"
	flannelFinalizer = "flannel-operator"
	certLabel        = "giantswarm.io/certificate"
	certTTL          = "4320h"
)

// handled returns objects of this operator's version. Operators of the old kind know no pause: an annotation does not stop them, another
// version does.
func (o *Options) handled(ctx context.Context, name string) ([]unstructured.Unstructured, error) {
	all, err := list(ctx, o.Client, name)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(u unstructured.Unstructured) bool {
		version, _, err := unstructured.NestedString(u.Object, "spec", "versionBundle", "version")
		return err != nil || version != o.Version
	}), nil
}

// Cluster is cluster-operator, for what it does to certificates and to the platform's namespace in the workload cluster.
type Cluster struct {
	Options

	// Workload connects to the API server of the cluster of an id; nothing is done inside when nil.
	Workload func(ctx context.Context, id, endpoint string) (client.Client, error)
}

// platformNamespace is where the platform's own programs run, in every workload cluster. The add-ons of a master wait for it.
const platformNamespace = "giantswarm"

// Loops returns what the operator does.
func (c *Cluster) Loops() []Loop {
	return []Loop{{Name: "reconcile", Every: c.scaled(resync), Do: c.Reconcile}}
}

// guest is the part of a KVMClusterConfig that decides about certificates.
type guest struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Guest struct {
			ID             string `json:"id"`
			Owner          string `json:"owner"`
			DNSZone        string `json:"dnsZone"`
			VersionBundles []struct {
				Name    string `json:"name"`
				Version string `json:"version"`
			} `json:"versionBundles"`
		} `json:"guest"`
	} `json:"spec"`
}

// Reconcile creates the CertConfigs of every cluster, and takes them along with it.
func (c *Cluster) Reconcile(ctx context.Context) error {
	all, err := c.handled(ctx, desired.KindKVMClusterConfig)
	if err != nil {
		return err
	}
	return each(all, func(o *unstructured.Unstructured) error {
		g := &guest{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, g); err != nil {
			return fmt.Errorf("reading: %w", err)
		}
		if o.GetDeletionTimestamp() != nil {
			return c.tearDown(ctx, o, g)
		}
		if err := addFinalizer(ctx, c.Client, o, clusterFinalizer); err != nil {
			return err
		}
		serviceIP, err := c.serviceIP(ctx, g.Spec.Guest.ID)
		if err != nil {
			return err
		}
		for _, want := range CertConfigs(g.Spec.Guest.ID, g.Spec.Guest.Owner, g.Spec.Guest.DNSZone, g.certOperator(), serviceIP) {
			want.SetNamespace(o.GetNamespace())
			if _, err := create(ctx, c.Client, want); err != nil {
				return err
			}
		}
		return c.prepareWorkload(ctx, g)
	})
}

// prepareWorkload makes the platform's namespace. A cluster that does not answer yet is asked again.
func (c *Cluster) prepareWorkload(ctx context.Context, g *guest) error {
	if c.Workload == nil {
		return nil
	}
	workload, err := c.Workload(ctx, g.Spec.Guest.ID, "api."+g.Spec.Guest.DNSZone)
	if err == nil {
		_, err = create(ctx, workload, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: platformNamespace}})
	}
	if err != nil {
		c.Log.WithError(err).WithField("cluster", g.Spec.Guest.ID).Debug("the workload cluster does not answer")
	}
	return nil
}

func (g *guest) certOperator() string {
	for _, b := range g.Spec.Guest.VersionBundles {
		if b.Name == "cert-operator" {
			return b.Version
		}
	}
	return ""
}

// serviceIP is the first address of the service network. The real operator has the network in its configuration.
func (c *Cluster) serviceIP(ctx context.Context, id string) (string, error) {
	config := kind(desired.KindKVMConfig)
	if err := c.Client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: id}, config); err != nil {
		return "", fmt.Errorf("looking for the service network: %w", err)
	}
	cidr, _, err := unstructured.NestedString(config.Object, "spec", "cluster", "kubernetes", "api", "clusterIPRange")
	if err != nil {
		return "", fmt.Errorf("looking for the service network: %w", err)
	}
	return FirstAddress(cidr)
}

// FirstAddress is the address of the Service kubernetes in a network.
func FirstAddress(cidr string) (string, error) {
	ip, _, err := net.ParseCIDR(cidr)
	if err != nil || ip.To4() == nil {
		return "", fmt.Errorf("reading the service network %q: it is no IPv4 network", cidr)
	}
	ip = ip.To4()
	ip[3]++
	return ip.String(), nil
}

func (c *Cluster) tearDown(ctx context.Context, o *unstructured.Unstructured, g *guest) error {
	for _, want := range CertConfigs(g.Spec.Guest.ID, g.Spec.Guest.Owner, g.Spec.Guest.DNSZone, "", "") {
		want.SetNamespace(o.GetNamespace())
		if err := remove(ctx, c.Client, want); err != nil {
			return err
		}
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: g.Spec.Guest.ID + "-kubeconfig", Namespace: g.Spec.Guest.ID}}
	if err := remove(ctx, c.Client, secret); err != nil {
		return err
	}
	return removeFinalizer(ctx, c.Client, o, clusterFinalizer)
}

// CertConfigs are those of a cluster, in alphabetical order.
func CertConfigs(id, organization, zone, certOperator, serviceIP string) []*unstructured.Unstructured {
	kubernetes := []any{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	config := func(component, name string, cert map[string]any) *unstructured.Unstructured {
		o := kind(desired.KindCertConfig)
		o.SetName(id + "-" + component)
		o.SetLabels(map[string]string{
			"cert-operator.giantswarm.io/version": certOperator, "clusterComponent": component, "clusterID": id, certLabel: component,
			desired.ClusterLabel: id, desired.ManagedByLabel: clusterFinalizer, desired.OrganizationLabel: organization,
		})
		all := map[string]any{
			"allowBareDomains": false, "clusterComponent": component, "clusterID": id, "commonName": name, "disableRegeneration": false, "ttl": certTTL,
		}
		maps.Copy(all, cert)
		o.Object["spec"] = map[string]any{"cert": all, "versionBundle": map[string]any{"version": ""}}
		return o
	}
	api := "api." + zone
	master := append(slices.Clone(kubernetes), "master."+id, "internal-api."+zone)
	return []*unstructured.Unstructured{
		config("api", api, map[string]any{"allowBareDomains": true, "altNames": master, "ipSans": []any{serviceIP}, "organizations": []any{"system:masters"}}),
		config("app-operator-api", api, nil),
		config("calico-etcd-client", "calico."+zone, nil),
		config("cluster-operator-api", api, nil),
		config("etcd", "etcd."+zone, map[string]any{"allowBareDomains": true, "ipSans": []any{"127.0.0.1"}}),
		config("flanneld-etcd-client", "flanneld-etcd-client."+zone, nil),
		config("node-operator", api, nil),
		config("prometheus", api, nil),
		config("service-account", "service-account."+zone, nil),
		config("worker", "worker."+zone, map[string]any{"allowBareDomains": true, "altNames": kubernetes}),
	}
}

// Cert is cert-operator. It signs with authorities by the cluster's id, which stand for the mounts of a Vault.
type Cert struct {
	Options

	Authority func(id string) (*pki.Authority, error)
	// IDs lists the clusters that have a mount, and Forget deletes one, key included.
	IDs    func() ([]string, error)
	Forget func(id string) error
}

// Loops returns what the operator does.
func (c *Cert) Loops() []Loop {
	return []Loop{{Name: "reconcile", Every: c.scaled(resync), Do: c.Reconcile}}
}

// Reconcile writes the Secrets of CertConfigs that are not paused. There is no renewal: labs do not live that long.
func (c *Cert) Reconcile(ctx context.Context) error {
	all, err := list(ctx, c.Client, desired.KindCertConfig, client.MatchingLabels{"cert-operator.giantswarm.io/version": c.Version})
	if err != nil {
		return err
	}
	return each(all, func(o *unstructured.Unstructured) error {
		if paused(o) {
			return nil
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: o.GetName(), Namespace: o.GetNamespace()}}
		if o.GetDeletionTimestamp() != nil {
			if err := remove(ctx, c.Client, secret); err != nil {
				return err
			}
			return removeFinalizer(ctx, c.Client, o, certFinalizer)
		}
		if err := addFinalizer(ctx, c.Client, o, certFinalizer); err != nil {
			return err
		}
		err := c.Client.Get(ctx, client.ObjectKeyFromObject(secret), secret)
		if err == nil {
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("looking for the Secret: %w", err)
		}
		want, err := c.issue(o)
		if err != nil {
			return err
		}
		_, err = create(ctx, c.Client, want)
		return err
	})
}

func (c *Cert) issue(o *unstructured.Unstructured) (*corev1.Secret, error) {
	id, _, err := unstructured.NestedString(o.Object, "spec", "cert", "clusterID")
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's id: %w", err)
	}
	ca, err := c.Authority(id)
	if err != nil {
		return nil, err
	}
	return Issue(ca, o, c.Version, c.Clock.Now())
}

// certSpec is spec.cert of a CertConfig.
type certSpec struct {
	AltNames         []string `json:"altNames"`
	ClusterComponent string   `json:"clusterComponent"`
	ClusterID        string   `json:"clusterID"`
	CommonName       string   `json:"commonName"`
	IPSANs           []string `json:"ipSans"`
	Organizations    []string `json:"organizations"`
}

// Issue makes the Secret of a CertConfig.
func Issue(ca *pki.Authority, o *unstructured.Unstructured, version string, now time.Time) (*corev1.Secret, error) {
	raw, err := json.Marshal(child(child(o.DeepCopy().Object, "spec"), "cert"))
	if err != nil {
		return nil, fmt.Errorf("encoding a certificate's configuration: %w", err)
	}
	spec := certSpec{}
	if err := json.Unmarshal(raw, &spec); err != nil {
		return nil, fmt.Errorf("reading a certificate's configuration: %w", err)
	}
	names := pki.Names{
		CommonName: spec.CommonName, Organizations: append([]string{spec.ClusterComponent}, spec.Organizations...),
		DNS: append([]string{spec.CommonName}, spec.AltNames...),
	}
	slices.Sort(names.DNS)
	for _, text := range spec.IPSANs {
		ip := net.ParseIP(text)
		if ip == nil {
			return nil, fmt.Errorf("reading a certificate's configuration: %q is no address", text)
		}
		names.IPs = append(names.IPs, ip)
	}
	pair, err := ca.Issue(names)
	if err != nil {
		return nil, err
	}
	trim := func(pem []byte) []byte { return []byte(strings.TrimSpace(string(pem))) }
	hash := sha1.Sum(raw) //nolint:gosec // Not for security.
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: o.GetName(), Namespace: o.GetNamespace(),
			Labels: map[string]string{
				"cert-operator.giantswarm.io/version": version, certLabel: spec.ClusterComponent, desired.ClusterLabel: spec.ClusterID,
			},
			Annotations: map[string]string{
				"cert.giantswarm.io/config-hash": hex.EncodeToString(hash[:]),
				"giantswarm.io/update-timestamp": now.UTC().Format("2006-01-02T15:04:05.000000Z"),
			},
		},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{"ca": trim(ca.CertPEM()), "crt": trim(pair.Cert), "key": trim(pair.Key)},
	}, nil
}

// CleanUp is what cert-operator does once at every start, to paused objects too: the CertConfigs of a cluster that has no KVMConfig go,
// and its authority with its key.
func (c *Cert) CleanUp(ctx context.Context) error {
	ids, err := c.IDs()
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		err := c.Client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: id}, kind(desired.KindKVMConfig))
		if err == nil {
			continue
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("looking for KVMConfig %s: %w", id, err)
		}
		c.Log.WithField("cluster", id).Info("deleting the certificates and the authority of a cluster that has no KVMConfig")
		configs, err := list(ctx, c.Client, desired.KindCertConfig, client.MatchingLabels{desired.ClusterLabel: id})
		if err != nil {
			return err
		}
		errs = append(errs, each(configs, func(o *unstructured.Unstructured) error { return remove(ctx, c.Client, o) }), c.Forget(id))
	}
	return errors.Join(errs...)
}

// Flannel is flannel-operator. The bridges are made by the DaemonSet it creates.
type Flannel struct{ Options }

// Loops returns what the operator does.
func (f *Flannel) Loops() []Loop {
	return []Loop{{Name: "reconcile", Every: f.scaled(resync), Do: f.Reconcile}}
}

// flannelSpec is the part of a FlannelConfig that decides about the DaemonSet.
type flannelSpec struct {
	Spec struct {
		Bridge struct {
			Docker struct {
				Image string `json:"image"`
			} `json:"docker"`
		} `json:"bridge"`
		Cluster struct {
			ID        string `json:"id"`
			Customer  string `json:"customer"`
			Namespace string `json:"namespace"`
		} `json:"cluster"`
		Flannel struct {
			Spec struct {
				Network string `json:"network"`
				RunDir  string `json:"runDir"`
				VNI     int    `json:"vni"`
			} `json:"spec"`
		} `json:"flannel"`
		Health struct {
			Docker struct {
				Image string `json:"image"`
			} `json:"docker"`
		} `json:"health"`
	} `json:"spec"`
}

// Reconcile makes the network of every cluster. A deleted FlannelConfig waits until the cluster's namespace is gone.
func (f *Flannel) Reconcile(ctx context.Context) error {
	all, err := f.handled(ctx, desired.KindFlannelConfig)
	if err != nil {
		return err
	}
	return each(all, func(o *unstructured.Unstructured) error {
		s := &flannelSpec{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, s); err != nil {
			return fmt.Errorf("reading: %w", err)
		}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "flannel-network-" + s.Spec.Cluster.ID}}
		if o.GetDeletionTimestamp() != nil {
			err := f.Client.Get(ctx, client.ObjectKey{Name: s.Spec.Cluster.Namespace}, &corev1.Namespace{})
			if !apierrors.IsNotFound(err) {
				return err
			}
			if err := remove(ctx, f.Client, namespace); err != nil {
				return err
			}
			return removeFinalizer(ctx, f.Client, o, flannelFinalizer)
		}
		if err := addFinalizer(ctx, f.Client, o, flannelFinalizer); err != nil {
			return err
		}
		if _, err := create(ctx, f.Client, namespace); err != nil {
			return err
		}
		_, err := create(ctx, f.Client, f.daemonSet(s, namespace.Name))
		return err
	})
}

func (f *Flannel) daemonSet(s *flannelSpec, namespace string) *appsv1.DaemonSet {
	labels := map[string]string{"app": "flannel-network", "cluster": s.Spec.Cluster.ID, "customer": s.Spec.Cluster.Customer}
	network := s.Spec.Flannel.Spec
	bridge := desired.Bridge(s.Spec.Cluster.ID)
	env := []corev1.EnvVar{
		{Name: "ETCD_PREFIX", Value: "/coreos.com/network/" + bridge},
		{Name: "NETWORK", Value: network.Network},
		{Name: "NETWORK_BRIDGE_NAME", Value: bridge},
		{Name: "NETWORK_ENV_FILE_PATH", Value: network.RunDir + "/networks/" + bridge + ".env"},
		{Name: "NETWORK_TAP_NAME", Value: desired.Tap(s.Spec.Cluster.ID)},
		{Name: "VNI", Value: strconv.Itoa(network.VNI)},
		{Name: "HOST_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"}}},
	}
	container := func(name, image string, more ...corev1.EnvVar) corev1.Container {
		return corev1.Container{
			Name: name, Image: image, Env: slices.Concat(env, more), SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
			VolumeMounts: []corev1.VolumeMount{{Name: "flannel", MountPath: network.RunDir}},
		}
	}
	listen := corev1.EnvVar{Name: "LISTEN_ADDRESS", Value: fmt.Sprintf("http://127.0.0.1:%d", desired.FlannelPortBase+network.VNI)}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "flannel-network", Namespace: namespace, Labels: labels},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					HostNetwork: true, HostPID: true,
					Containers: []corev1.Container{
						container("flanneld", "quay.io/giantswarm/flannel:v0.10.0-amd64"),
						container("k8s-network-bridge", s.Spec.Bridge.Docker.Image),
						container("flannel-network-health", s.Spec.Health.Docker.Image, listen),
					},
					Volumes: []corev1.Volume{{Name: "flannel", VolumeSource: corev1.VolumeSource{
						HostPath: &corev1.HostPathVolumeSource{Path: network.RunDir},
					}}},
				},
			},
		},
	}
}
