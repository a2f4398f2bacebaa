package mc

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

// InstallCRDs installs the CRDs of directories or files and returns when they
// are served. Other objects in them are left out. From a directory named
// "bases", labels of the kustomization above it are added: the contract labels
// live there, and without them Cluster API does not find a provider's kinds.
func (c *Cluster) InstallCRDs(ctx context.Context, paths ...string) error {
	var crds []*unstructured.Unstructured
	for _, path := range paths {
		found, err := readCRDs(path)
		if err != nil {
			return err
		}
		crds = append(crds, found...)
	}
	return c.installCRDs(ctx, crds)
}

func readCRDs(path string) ([]*unstructured.Unstructured, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("looking for CRDs: %w", err)
	}
	read := manifest.ReadFile
	if info.IsDir() {
		read = manifest.ReadDir
	}
	objects, err := read(path)
	if err != nil {
		return nil, err
	}
	labels := map[string]string{}
	if filepath.Base(path) == "bases" {
		k, err := manifest.ReadKustomization(filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		labels = k.AllLabels()
	}
	var crds []*unstructured.Unstructured
	for _, o := range objects {
		if o.GetKind() == manifest.CRDKind {
			manifest.AddLabels(o, labels)
			// An exported CRD is as good as one from a source tree.
			manifest.Strip(o)
			unstructured.RemoveNestedField(o.Object, "status")
			crds = append(crds, o)
		}
	}
	return crds, nil
}

func (c *Cluster) installCRDs(ctx context.Context, crds []*unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.StartTimeout)
	defer cancel()
	return manifest.EnsureCRDs(ctx, c.client, c.asker(), crds)
}

func (c *Cluster) asker() manifest.Asker {
	return manifest.Asker{Client: c.probe, URL: c.URL(), Clock: c.opts.Clock}
}

// InstallWebhooks installs the webhook configurations of a file (as
// controller-gen writes it) for a server on loopback: calls go to url plus the
// path of each webhook's service, trusting the cluster's authority. See
// ServingCert for the server's certificate.
func (c *Cluster) InstallWebhooks(ctx context.Context, file, url string) error {
	hooks, err := manifest.ReadFile(file)
	if err != nil {
		return err
	}
	return c.installWebhooks(ctx, hooks, url)
}

func (c *Cluster) installWebhooks(ctx context.Context, configurations []*unstructured.Unstructured, url string) error {
	for _, o := range configurations {
		hooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
		if err != nil {
			return fmt.Errorf("reading %s: %w", manifest.Describe(o), err)
		}
		for _, h := range hooks {
			hook, ok := h.(map[string]any)
			if !ok {
				continue
			}
			path, _, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
			if err != nil {
				return fmt.Errorf("reading %s: %w", manifest.Describe(o), err)
			}
			hook["clientConfig"] = c.clientConfig(url + path)
		}
		if err := unstructured.SetNestedSlice(o.Object, hooks, "webhooks"); err != nil {
			return fmt.Errorf("writing %s: %w", manifest.Describe(o), err)
		}
	}
	return manifest.Ensure(ctx, c.client, configurations)
}

// convertByURL points a CRD's conversion webhook, if it has one, to a URL.
func (c *Cluster) convertByURL(crd *unstructured.Unstructured, url string) error {
	path, found, err := unstructured.NestedString(crd.Object, "spec", "conversion", "webhook", "clientConfig", "service", "path")
	if err != nil || !found {
		return err
	}
	return unstructured.SetNestedMap(crd.Object, c.clientConfig(url+path), "spec", "conversion", "webhook", "clientConfig")
}

func (c *Cluster) clientConfig(url string) map[string]any {
	return map[string]any{"url": url, "caBundle": base64.StdEncoding.EncodeToString(c.ca.CertPEM())}
}
