package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/pod"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacyguest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
)

const (
	registry = "quay.io/giantswarm/"
	// patience is for machines that are emulated: a master may boot for half an hour, and whatever else this computer does later makes it late
	// again. What ends a machine then is the end of its process.
	patience = "4h"
)

// Images are what hosts run for the images of a legacy cluster and of the operators.
func Images(program string) map[string]mc.Image {
	image := func(path string, more ...string) mc.Image {
		i := mc.Image{Program: program, Path: path}
		for _, p := range more {
			if i.Files == nil {
				i.Files = map[string]string{}
			}
			i.Files[p] = program
		}
		return i
	}
	kvm := image(pod.PathEntrypoint, pod.PathShutdown, pod.PathIfUp)
	kvm.Env = map[string]string{pod.ImageEnv: legacyguest.ImageName}
	health := image(pod.PathHealth)
	health.Env = map[string]string{pod.PatienceEnv: patience}
	images := map[string]mc.Image{
		registry + desired.EndpointUpdater:  image(pod.PathEndpointUpdater),
		registry + desired.K8sKVM:           kvm,
		registry + desired.K8sKVMHealth:     health,
		registry + desired.ShutdownDeferrer: image(pod.PathDeferrer, pod.PathHook),
		registry + "flannel":                image(pod.PathFlannel),
		registry + "k8s-network-bridge":     image(pod.PathBridge),
		registry + "flannel-network-health": image(pod.PathFlannelHealth),
	}
	for _, o := range operators() {
		images[registry+o.name] = image("/" + cli.Program)
	}
	return images
}

// addImages adds to the image map of a running lab. Hosts read it for every container.
func addImages(path string, images map[string]mc.Image) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the lab's image map: %w", err)
	}
	all := map[string]mc.Image{}
	if err := json.Unmarshal(raw, &all); err != nil {
		return fmt.Errorf("reading the lab's image map: %w", err)
	}
	maps.Copy(all, images)
	if raw, err = json.MarshalIndent(all, "", "  "); err != nil {
		return fmt.Errorf("encoding the lab's image map: %w", err)
	}
	// A host must never read half of it.
	f, err := os.CreateTemp(filepath.Dir(path), "images-*.json")
	if err != nil {
		return fmt.Errorf("writing the lab's image map: %w", err)
	}
	_, err = f.Write(raw)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing the lab's image map: %w", err), os.Remove(f.Name()))
	}
	return nil
}
