package mc

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
)

// Image is what a host runs for a container image: there is no registry, and
// nothing is pulled. Images are known by their name with tag or digest, or
// without for every tag, or by a prefix that ends in "*".
type Image struct {
	// Program is a file of this machine that appears at Path and is the entrypoint.
	Program string `json:"program,omitempty"`
	Path    string `json:"path,omitempty"`
	// Args are the arguments when the container gives neither command nor arguments.
	Args []string `json:"args,omitempty"`
	// Files maps further paths in the container to files of this machine.
	Files map[string]string `json:"files,omitempty"`
	// Env of the image, which the container's overrides.
	Env map[string]string `json:"env,omitempty"`
	// WorkingDir of the image.
	WorkingDir string `json:"workingDir,omitempty"`
}

// Names of the images the lab knows by itself.
const (
	ImageCAPKController = "ghcr.io/giantswarm/cluster-api-provider-kvm-controller"
	ImageVMLauncher     = "ghcr.io/giantswarm/cluster-api-provider-kvm-launcher"
	ImageClusterAPI     = "registry.k8s.io/cluster-api/cluster-api-controller"
	ImageBootstrap      = "registry.k8s.io/cluster-api/kubeadm-bootstrap-controller"
	ImageControlPlane   = "registry.k8s.io/cluster-api/kubeadm-control-plane-controller"
	imageCertManager    = "quay.io/jetstack/"
)

// Paths within the images, as their releases have them.
const (
	managerPath    = "/manager"
	controllerPath = "/usr/local/bin/capk-controller"
	launcherPath   = "/usr/local/bin/vm-launcher"
	agentPath      = "/usr/local/bin/vm-agent"
)

// DefaultImages is what the hosts of a lab can run by default: programs of the
// working tree, and what the builder makes. A program that does not exist has
// no image.
func DefaultImages(programs, assets builder.Assets) map[string]Image {
	images := map[string]Image{}
	if path := programs[builder.CAPKController]; path != "" {
		images[ImageCAPKController] = Image{Program: path, Path: controllerPath}
	}
	if path := programs[builder.VMLauncher]; path != "" {
		launcher := Image{Program: path, Path: launcherPath, Files: map[string]string{}}
		if agent := programs[builder.VMAgent]; agent != "" {
			launcher.Files[agentPath] = agent
		}
		images[ImageVMLauncher] = launcher
	}
	for image, component := range map[string]string{
		ImageClusterAPI: builder.ClusterAPICore, ImageBootstrap: builder.ClusterAPIBootstrap, ImageControlPlane: builder.ClusterAPIControl,
	} {
		if path := assets[component]; path != "" {
			// In a pod, webhooks are called from outside.
			images[image] = Image{Program: path, Path: managerPath, Env: map[string]string{builder.WebhookHostEnv: ""}}
		}
	}
	for _, component := range certManagerPrograms() {
		if path := assets[component]; path != "" {
			images[imageCertManager+component] = Image{Program: path, Path: "/app/" + component}
		}
	}
	return images
}

// certManagerPrograms are components and images of the same names.
func certManagerPrograms() []string {
	return []string{builder.CertManagerController, builder.CertManagerWebhook, builder.CertManagerCAInjector}
}

// ImagesPath is the hosts' image map, which they read for every container: who
// adds to the file adds images to the running cluster.
func (c *Cluster) ImagesPath() string { return filepath.Join(c.dir, "images.json") }

// writeImages writes the hosts' image map and returns its path.
func (c *Cluster) writeImages() (string, error) {
	assets, err := c.opts.Builder.Cached(certManagerPrograms()...)
	if err != nil {
		return "", err
	}
	maps.Copy(assets, c.assets)
	images := DefaultImages(c.programs, assets)
	maps.Copy(images, c.opts.Images)
	raw, err := json.MarshalIndent(images, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encoding the image map: %w", err)
	}
	if err := os.WriteFile(c.ImagesPath(), raw, 0o600); err != nil {
		return "", fmt.Errorf("writing the image map: %w", err)
	}
	return c.ImagesPath(), nil
}
