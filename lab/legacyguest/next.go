package legacyguest

import (
	"embed"
	"io/fs"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/guest"
)

// NextImageName is the directory of the image that [Next] describes, below the cache's images.
const NextImageName = "debian-12-kubernetes-1.22"

// The tags that kubeadm v1.22.17 asks for; etcd's is the plan's.
const (
	kubeadmRegistry = "registry.k8s.io/"
	nextPause       = kubeadmRegistry + "pause:3.5"
	nextEtcd        = kubeadmRegistry + "etcd:3.5.0-0"
)

//go:embed all:next
var nextFiles embed.FS

// Next is the image of the machines that replace legacy ones: the lab's own image with the Kubernetes that a plan asks for. It has the images of
// what legacy nodes run as DaemonSets, under their names.
func Next() guest.Recipe {
	r := guest.Default()
	version := builder.NextKubernetesVersion
	r.Name, r.KubernetesVersion = NextImageName, version
	r.Aliases = []string{"kubernetes-" + version, "kubernetes-" + version + "-ignition"}
	own, err := fs.Sub(nextFiles, "next")
	if err != nil {
		panic(err) // Only for a path that is no path.
	}
	r.Parts.Shared, r.Parts.Files = guest.OwnFiles(), own
	r.Parts.Values = map[string]string{"@PAUSE_IMAGE@": nextPause}
	r.Parts.Components = nextComponents()
	r.Parts.Images = nextImages()
	return r
}

func nextComponents() []builder.Component {
	all := append(builder.Next(), builder.Component{Name: standin, Version: standinVersion, Program: standinProgram})
	for _, c := range guest.Components() {
		if c.Name == guest.Ignition || c.Name == guest.Crictl || c.Name == guest.Pause || c.Name == guest.Echo {
			all = append(all, c)
		}
	}
	return all
}

// nextImages are what kubeadm starts, then everything of a legacy machine that is not of its control plane.
func nextImages() []guest.ContainerImage {
	kube := func(name string) guest.ContainerImage {
		return guest.ContainerImage{
			Ref: kubeadmRegistry + name + ":" + builder.NextKubernetesVersion, Programs: map[string]string{"/usr/local/bin/" + name: name}, Env: []string{guest.OneProcessor},
		}
	}
	all := []guest.ContainerImage{
		kube(builder.APIServer), kube(builder.ControllerManager), kube(builder.Scheduler),
		guest.EtcdImage(nextEtcd, guest.SeldomNotifying),
		{Ref: nextPause, Programs: map[string]string{"/pause": guest.Pause}, Entrypoint: []string{"/pause"}},
	}
	for _, i := range images() {
		if isControlPlane(i) || strings.Contains(i.Ref, "/pause:") {
			continue
		}
		all = append(all, i)
	}
	return all
}

func isControlPlane(i guest.ContainerImage) bool {
	for _, component := range i.Programs {
		switch component {
		case builder.Etcd, builder.Etcdctl, builder.APIServer, builder.ControllerManager, builder.Scheduler:
			return true
		}
	}
	return false
}
