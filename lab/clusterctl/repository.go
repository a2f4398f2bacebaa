package clusterctl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/release/artifacts"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/certmanager"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
)

// DefaultVersion is the version under which a working tree is published.
const DefaultVersion = "v0.1.0"

// Components are what the builder has to provide for Write.
func Components() []string {
	return []string{builder.Clusterctl, builder.ClusterAPIManifests, builder.CertManagerFiles}
}

// Repository says what to publish.
type Repository struct {
	// Dir is where to write; an absolute path. The configuration refers to it.
	Dir string
	// Files are the files of this provider, as artifacts.Build makes them.
	Files artifacts.Files
	// Version of this provider; DefaultVersion when empty.
	Version string
	// Assets hold Components.
	Assets builder.Assets
}

// provider is an entry of clusterctl's configuration. Its URL ends in LABEL/VERSION/FILE, and clusterctl takes label and version from
// there.
type provider struct {
	Name string `json:"name"`
	Type string `json:"type"`
	URL  string `json:"url"`
}

// config is clusterctl's configuration. Everything but the first two keys is a variable.
type config struct {
	Providers   []provider        `json:"providers"`
	CertManager map[string]string `json:"cert-manager"`
	// Feature gates that our templates need: a ClusterClass, and machines that are configured by Ignition.
	ClusterTopology string `json:"CLUSTER_TOPOLOGY"`
	Ignition        string `json:"EXP_KUBEADM_BOOTSTRAP_FORMAT_IGNITION"`
}

// Write writes the repository and returns the path of clusterctl's configuration. Steps: this provider, the providers of Cluster API,
// cert-manager, configuration.
func (r Repository) Write() (string, error) {
	if r.Version == "" {
		r.Version = DefaultVersion
	}
	c := config{ClusterTopology: "true", Ignition: "true"}
	if err := r.put(artifacts.Provider, r.Version, r.Files); err != nil {
		return "", err
	}
	c.Providers = append(c.Providers, provider{"kvm", "InfrastructureProvider", r.url(artifacts.Provider, r.Version, artifacts.ComponentsFile)})
	for _, u := range upstream() {
		files, err := u.files(r.Assets[builder.ClusterAPIManifests])
		if err != nil {
			return "", err
		}
		if err := r.put(u.label, builder.ClusterAPIVersion, files); err != nil {
			return "", err
		}
		c.Providers = append(c.Providers, provider{u.name, u.kind, r.url(u.label, builder.ClusterAPIVersion, u.file)})
	}
	manifest, err := certmanager.Manifest(r.Assets)
	if err != nil {
		return "", err
	}
	const certManager, certManagerFile = "cert-manager", "cert-manager.yaml"
	if err := r.put(certManager, builder.CertManagerVersion, artifacts.Files{certManagerFile: manifest}); err != nil {
		return "", err
	}
	c.CertManager = map[string]string{
		"url": r.url(certManager, builder.CertManagerVersion, certManagerFile), "version": builder.CertManagerVersion,
	}
	return r.writeConfig(c)
}

func (r Repository) url(label, version, file string) string {
	return filepath.Join(r.Dir, label, version, file)
}

func (r Repository) put(label, version string, files artifacts.Files) error {
	_, err := files.Write(filepath.Join(r.Dir, label, version))
	return err
}

func (r Repository) writeConfig(c config) (string, error) {
	raw, err := yaml.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encoding clusterctl's configuration: %w", err)
	}
	path := filepath.Join(r.Dir, "clusterctl.yaml")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return "", fmt.Errorf("writing clusterctl's configuration: %w", err)
	}
	return path, nil
}

// upstreamProvider is one of Cluster API's own providers.
type upstreamProvider struct {
	name, kind, label, file string
	// component is the directory of its manifests, image the one of its release.
	component, image string
}

func upstream() []upstreamProvider {
	return []upstreamProvider{
		{"cluster-api", "CoreProvider", "cluster-api", "core-components.yaml", builder.ClusterAPICore, mc.ImageClusterAPI},
		{"kubeadm", "BootstrapProvider", "bootstrap-kubeadm", "bootstrap-components.yaml", builder.ClusterAPIBootstrap, mc.ImageBootstrap},
		{"kubeadm", "ControlPlaneProvider", "control-plane-kubeadm", "control-plane-components.yaml", builder.ClusterAPIControl, mc.ImageControlPlane},
	}
}

// files renders the provider's kustomization and gives its manager the image of the release: in the source tree it is one of a
// development build.
func (u upstreamProvider) files(manifests string) (artifacts.Files, error) {
	objects, err := artifacts.Render(filepath.Join(manifests, u.component, "default"))
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		if err := setImage(o, u.image+":"+builder.ClusterAPIVersion); err != nil {
			return nil, err
		}
	}
	components, err := artifacts.Encode(objects)
	if err != nil {
		return nil, err
	}
	metadata, err := metadata(builder.ClusterAPIVersion)
	if err != nil {
		return nil, err
	}
	return artifacts.Files{u.file: components, artifacts.MetadataFile: metadata}, nil
}

func setImage(deployment *unstructured.Unstructured, image string) error {
	containers, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	if err != nil {
		return fmt.Errorf("reading the containers of Deployment %s: %w", deployment.GetName(), err)
	}
	for _, c := range containers {
		if container, ok := c.(map[string]any); ok && container["name"] == "manager" {
			container["image"] = image
			container["imagePullPolicy"] = "IfNotPresent"
		}
	}
	return unstructured.SetNestedSlice(deployment.Object, containers, "spec", "template", "spec", "containers")
}

// metadata says that a version of Cluster API implements the contract of this provider.
func metadata(version string) ([]byte, error) {
	var major, minor int
	if _, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d.", &major, &minor); err != nil {
		return nil, fmt.Errorf("reading version %s: %w", version, err)
	}
	return yaml.Marshal(map[string]any{
		"apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3", "kind": "Metadata",
		"releaseSeries": []any{map[string]any{"major": major, "minor": minor, "contract": artifacts.Contract}},
	})
}
