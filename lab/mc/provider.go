package mc

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/release/artifacts"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

// Provider says how the product's controller runs in a cluster with hosts.
type Provider string

// The ways. Both install what config/default of the working tree renders to,
// with certificates of the cluster's authority instead of cert-manager's.
const (
	// NoProvider leaves the installation to others.
	NoProvider Provider = ""
	// ProviderPod runs the Deployment.
	ProviderPod Provider = "pod"
	// ProviderProcess runs the program beside the API server, as the Deployment's
	// service account: easier to kill, profile and replace.
	ProviderProcess Provider = "process"
)

const certManagerGroup = "cert-manager.io"

// check says what a provider needs of the other options.
func (o Options) checkProvider() error {
	switch {
	case o.Provider == NoProvider:
		return nil
	case o.Provider != ProviderPod && o.Provider != ProviderProcess:
		return fmt.Errorf("installing the provider: %q is neither %s nor %s", o.Provider, ProviderPod, ProviderProcess)
	case o.Hosts == 0 && o.Provider == ProviderPod:
		return errors.New("installing the provider as a pod: it needs hosts to run on")
	case !o.Parts.Has(ClusterAPICRDs):
		return errors.New("installing the provider: it needs the CRDs of Cluster API; without them, leave the provider to clusterctl, too")
	case o.Source == "":
		return errors.New("installing the provider: its manifests are in the working tree, which is not known")
	}
	return nil
}

// providerObjects are the rendered manifests, sorted by what becomes of them.
type providerObjects struct {
	crds, namespaces, hooks, workloads, others []*unstructured.Unstructured
	// secrets are what cert-manager would make: namespace and name.
	secrets []client.ObjectKey
}

// installProvider installs the product's provider and waits until it works.
// Steps: render, certificates, CRDs, namespace, the rest, the controller.
func (c *Cluster) installProvider(ctx context.Context) error {
	rendered, err := artifacts.Render(filepath.Join(c.opts.Source, "config", "default"))
	if err != nil {
		return fmt.Errorf("installing the provider: %w", err)
	}
	objects, err := sortProvider(rendered)
	if err != nil {
		return fmt.Errorf("installing the provider: %w", err)
	}
	if err := c.installCRDs(ctx, objects.crds); err != nil {
		return fmt.Errorf("installing the provider's CRDs: %w", err)
	}
	if err := manifest.Ensure(ctx, c.client, objects.namespaces); err != nil {
		return fmt.Errorf("installing the provider: %w", err)
	}
	if err := manifest.Ensure(ctx, c.client, objects.others); err != nil {
		return fmt.Errorf("installing the provider: %w", err)
	}
	if c.opts.Provider == ProviderProcess {
		return c.runProvider(ctx, objects)
	}
	return c.deployProvider(ctx, objects)
}

func sortProvider(rendered []*unstructured.Unstructured) (providerObjects, error) {
	var sorted providerObjects
	for _, o := range rendered {
		switch {
		case o.GetKind() == manifest.CRDKind:
			sorted.crds = append(sorted.crds, o)
		case o.GetKind() == "Namespace":
			sorted.namespaces = append(sorted.namespaces, o)
		case strings.HasSuffix(o.GetKind(), "WebhookConfiguration"):
			sorted.hooks = append(sorted.hooks, o)
		case o.GetKind() == "Deployment":
			sorted.workloads = append(sorted.workloads, o)
		case o.GroupVersionKind().Group == certManagerGroup:
			name, found, err := unstructured.NestedString(o.Object, "spec", "secretName")
			if err != nil {
				return sorted, fmt.Errorf("reading %s: %w", manifest.Describe(o), err)
			}
			if found {
				sorted.secrets = append(sorted.secrets, client.ObjectKey{Namespace: o.GetNamespace(), Name: name})
			}
		default:
			sorted.others = append(sorted.others, o)
		}
	}
	if len(sorted.workloads) != 1 {
		return sorted, fmt.Errorf("reading its manifests: %d Deployments instead of one", len(sorted.workloads))
	}
	return sorted, nil
}

// deployProvider runs the Deployment behind its Service.
func (c *Cluster) deployProvider(ctx context.Context, objects providerObjects) error {
	var names []string
	err := eachHook(objects.hooks, func(hook map[string]any) error {
		service, _, err := unstructured.NestedMap(hook, "clientConfig", "service")
		if err != nil {
			return err
		}
		names = append(names, fmt.Sprintf("%v.%v.svc", service["name"], service["namespace"]))
		return unstructured.SetNestedField(hook, base64.StdEncoding.EncodeToString(c.ca.CertPEM()), "clientConfig", "caBundle")
	})
	if err != nil {
		return fmt.Errorf("reading the provider's webhooks: %w", err)
	}
	slices.Sort(names)
	pair, err := c.ca.Issue(pki.Names{CommonName: "capk-webhook", DNS: slices.Compact(names)})
	if err != nil {
		return err
	}
	var secrets []*unstructured.Unstructured
	for _, key := range objects.secrets {
		secrets = append(secrets, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
			"metadata": map[string]any{"namespace": key.Namespace, "name": key.Name},
			"data": map[string]any{
				"tls.crt": base64.StdEncoding.EncodeToString(pair.Cert), "tls.key": base64.StdEncoding.EncodeToString(pair.Key),
				"ca.crt": base64.StdEncoding.EncodeToString(c.ca.CertPEM()),
			},
		}})
	}
	deployment := objects.workloads[0]
	if err := addArgs(deployment, c.opts.ExtraArgs[builder.CAPKController]); err != nil {
		return err
	}
	for _, group := range [][]*unstructured.Unstructured{secrets, objects.workloads, objects.hooks} {
		if err := manifest.Ensure(ctx, c.client, group); err != nil {
			return fmt.Errorf("installing the provider: %w", err)
		}
	}
	return c.waitAvailable(ctx, client.ObjectKeyFromObject(deployment))
}

func eachHook(configurations []*unstructured.Unstructured, do func(map[string]any) error) error {
	for _, o := range configurations {
		hooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
		if err != nil {
			return fmt.Errorf("reading %s: %w", manifest.Describe(o), err)
		}
		for _, h := range hooks {
			if hook, ok := h.(map[string]any); ok {
				if err := do(hook); err != nil {
					return fmt.Errorf("reading %s: %w", manifest.Describe(o), err)
				}
			}
		}
		if err := unstructured.SetNestedSlice(o.Object, hooks, "webhooks"); err != nil {
			return fmt.Errorf("writing %s: %w", manifest.Describe(o), err)
		}
	}
	return nil
}

// container returns the only container of a Deployment, and its place.
func container(deployment *unstructured.Unstructured) (containers []any, first map[string]any, err error) {
	containers, _, err = unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", manifest.Describe(deployment), err)
	}
	if len(containers) > 0 {
		if first, ok := containers[0].(map[string]any); ok {
			return containers, first, nil
		}
	}
	return nil, nil, fmt.Errorf("reading %s: it has no container", manifest.Describe(deployment))
}

func addArgs(deployment *unstructured.Unstructured, args []string) error {
	if len(args) == 0 {
		return nil
	}
	containers, first, err := container(deployment)
	if err != nil {
		return err
	}
	have, _, err := unstructured.NestedStringSlice(first, "args")
	if err != nil {
		return fmt.Errorf("reading the arguments of %s: %w", manifest.Describe(deployment), err)
	}
	if err := unstructured.SetNestedStringSlice(first, append(have, args...), "args"); err != nil {
		return fmt.Errorf("adding arguments to %s: %w", manifest.Describe(deployment), err)
	}
	return unstructured.SetNestedSlice(deployment.Object, containers, "spec", "template", "spec", "containers")
}

func (c *Cluster) waitAvailable(ctx context.Context, key client.ObjectKey) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.StartTimeout)
	defer cancel()
	err := c.poll(ctx, nil, func(ctx context.Context) error {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("apps/v1")
		o.SetKind("Deployment")
		if err := c.client.Get(ctx, key, o); err != nil {
			return err
		}
		available, _, err := unstructured.NestedInt64(o.Object, "status", "availableReplicas")
		if err == nil && available == 0 {
			err = fmt.Errorf("no pod of Deployment %s is available; look at its pods with `kubectl describe`", key)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("waiting for the provider: %w", err)
	}
	return nil
}

// runProvider runs the controller beside the API server.
func (c *Cluster) runProvider(ctx context.Context, objects providerObjects) error {
	at := c.ports.provider
	url := "https://" + address(at.webhook)
	if err := c.installWebhooks(ctx, objects.hooks, url); err != nil {
		return err
	}
	deployment := objects.workloads[0]
	_, first, err := container(deployment)
	if err != nil {
		return err
	}
	args, _, err := unstructured.NestedStringSlice(first, "args")
	if err != nil {
		return fmt.Errorf("reading the arguments of %s: %w", manifest.Describe(deployment), err)
	}
	account, _, err := unstructured.NestedString(deployment.Object, "spec", "template", "spec", "serviceAccountName")
	if err != nil {
		return fmt.Errorf("reading the service account of %s: %w", manifest.Describe(deployment), err)
	}
	namespace := deployment.GetNamespace()
	config, err := c.writeKubeconfig(builder.CAPKController, "system:serviceaccount:"+namespace+":"+account,
		"system:serviceaccounts", "system:serviceaccounts:"+namespace)
	if err != nil {
		return err
	}
	certs, err := c.ServingCert(builder.CAPKController)
	if err != nil {
		return err
	}
	argv := slices.Concat([]string{c.programs[builder.CAPKController]}, args, []string{
		"--kubeconfig=" + config, "--leader-elect=false",
		"--webhook-host=" + loopback, "--webhook-port=" + strconv.Itoa(at.webhook), "--webhook-cert-dir=" + certs,
		"--health-addr=" + address(at.health), "--metrics-bind-address=" + address(at.diagnostics),
	}, c.opts.ExtraArgs[builder.CAPKController])
	return c.Run(ctx, Process{
		Name: builder.CAPKController, Version: "local", URL: url, Argv: argv,
		Env:   []string{"POD_NAMESPACE=" + namespace},
		Ready: healthy(c.probe, "http://"+address(at.health)+"/readyz"),
	})
}
