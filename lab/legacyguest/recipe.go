package legacyguest

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacyguest/dockerstore"
)

// ImageName is the image's directory below the cache's images.
const ImageName = "legacy-debian-12"

// Versions as the bootstrap data of release 16.2.1 name them; what is in the images is [builder.LegacyKubernetesVersion] and
// [builder.LegacyEtcdVersion].
const (
	registry          = "docker.io/giantswarm/"
	kubernetesTag     = "v1.21.5"
	etcdTag           = "v3.5.0"
	calicoTag         = "v3.20.1"
	environmentTag    = "0.2.0"
	healthzTag        = "0.1.1"
	pauseTag          = "3.2"
	standinVersion    = "v1"
	standin           = "legacy-standin"
	typhaUser         = "999"
	programsDirectory = "usr/lib/legacy/hyperkube/"
)

//go:embed all:files
var files embed.FS

//go:embed programs/standin/main.go
var standinProgram string

// Recipe is the image of a legacy cluster's machines.
func Recipe() guest.Recipe {
	r := guest.Default()
	r.Name, r.Aliases = ImageName, nil
	r.KubernetesVersion = builder.LegacyKubernetesVersion
	r.Packages = slices.DeleteFunc(slices.Clone(r.Packages), func(p string) bool { return p == "cloud-init" })
	r.Packages = append(r.Packages, "docker.io", "gettext-base", "passwd", "psmisc", "xfsprogs")
	r.Enable = []string{
		"legacy-disks.service", "legacy-images.service", "ssh.socket", "systemd-networkd.service", "systemd-resolved.service",
		"systemd-timesyncd.service",
	}
	// The bootstrap data enable what a legacy machine runs.
	r.Disable = []string{
		"containerd.service", "docker.service", "docker.socket", "ssh.service", "iscsid.service", "open-iscsi.service",
		"systemd-network-generator.service", "systemd-networkd-wait-online.service",
	}
	r.Mask = slices.DeleteFunc(slices.Clone(r.Mask), func(u string) bool { return u == "cloud-init-hotplugd.socket" })
	r.Cmdline += " systemd.unified_cgroup_hierarchy=0"
	r.DiskBytes = 4 << 30
	r.DiskUUID = "2f0c3c0e-5d0b-4d55-9a52-1f6d1c8b2116"
	r.Parts = guest.Parts{
		Files: files,
		Shared: []string{
			"etc/fstab", "etc/systemd/journald.conf.d/50-small.conf", "etc/systemd/system.conf.d/50-patience.conf",
			"etc/systemd/system-preset/00-guest.preset", "usr/lib/ignition/first-boot",
			"usr/lib/systemd/system/ssh-hostkey.service", "usr/lib/systemd/system/ssh.service.d/10-hostkey.conf",
		},
		Components: components(),
		Programs: map[string]string{
			programsDirectory + builder.Kubelet: builder.Kubelet,
			programsDirectory + builder.Kubectl: builder.Kubectl,
			"usr/lib/ignition/ignition":         guest.Ignition,
		},
		Images:  images(),
		Setup:   setupScript,
		Preload: preload,
	}
	return r
}

const setupScript = `
mv /usr/bin/docker /usr/lib/legacy/docker
ln -s /usr/lib/legacy/bin/docker /usr/bin/docker
ln -sf /usr/lib/legacy/bin/nslookup /usr/bin/nslookup
# Where Ignition looks for it to add users.
ln -sf /usr/sbin/chroot /usr/bin/chroot
mkdir -p /opt/bin /opt/cni/bin /etc/cni/net.d /etc/kubernetes/manifests
for plugin in /usr/lib/cni/*; do ln -sf "$plugin" /opt/cni/bin/; done
# Pods get this file, and have no resolver of systemd.
ln -sf ../run/systemd/resolve/resolv.conf /etc/resolv.conf
# For a unit with a script of the same name, systemctl starts a Perl program at the first boot.
rm -f /etc/init.d/*
`

// components are the old Kubernetes and etcd, and what every guest of the lab has.
func components() []builder.Component {
	all := builder.Legacy()
	for _, c := range guest.Components() {
		if c.Name == guest.Ignition || c.Name == guest.Pause || c.Name == guest.Echo {
			all = append(all, c)
		}
	}
	return append(all, builder.Component{Name: standin, Version: standinVersion, Program: standinProgram})
}

// images are everything that the bootstrap data run, by the names they use.
func images() []guest.ContainerImage {
	kube := func(name string, tools bool) guest.ContainerImage {
		return guest.ContainerImage{
			Ref: registry + name + ":" + kubernetesTag, Tools: tools, Programs: map[string]string{"/usr/local/bin/" + name: name}, Env: []string{guest.OneProcessor, guest.LessCollecting},
		}
	}
	other := func(ref, entrypoint string) guest.ContainerImage {
		return guest.ContainerImage{Ref: registry + ref, Programs: map[string]string{entrypoint: standin}, Entrypoint: []string{entrypoint}}
	}
	node := other("node:"+calicoTag, "/usr/bin/calico-node")
	node.Tools = true
	ctl := other("calicoctl:"+calicoTag, "/usr/bin/calicoctl")
	ctl.Tools = true
	cni := other("cni:"+calicoTag, "/opt/cni/bin/install")
	cni.Links = map[string]string{"/opt/cni/bin/calico-ipam": "install"}
	controllers := other("kube-controllers:"+calicoTag, "/usr/bin/kube-controllers")
	controllers.Links = map[string]string{"/usr/bin/check-status": "kube-controllers"}
	typha := other("typha:"+calicoTag, "/usr/bin/calico-typha")
	typha.User = typhaUser
	return []guest.ContainerImage{
		kube(builder.APIServer, false),
		kube(builder.ControllerManager, false),
		kube(builder.Scheduler, false),
		kube(builder.KubeProxy, true),
		guest.EtcdImage(registry+"etcd:"+etcdTag, guest.SeldomNotifying),
		{Ref: registry + "pause:" + pauseTag, Programs: map[string]string{"/pause": guest.Pause}, Entrypoint: []string{"/pause"}},
		other("k8s-setup-network-environment:"+environmentTag, "/k8s-setup-network-environment"),
		other("k8s-api-healthz:"+healthzTag, "/k8s-api-healthz"),
		other("hyperkube:"+kubernetesTag[1:], "/hyperkube"),
		other("calico-crd-installer:"+calicoTag, "/crd-installer"),
		node, ctl, cni, controllers, typha,
		{Ref: guest.EchoImage, Programs: map[string]string{"/echo": guest.Echo}, Entrypoint: []string{"/echo"}},
	}
}

// preload makes the data of a Docker daemon that has pulled the images, with the files of layers aside: the guest mounts them. A daemon
// cannot do it while the image is built: it does not run without control groups of its own.
func preload(root string, archives []string) error {
	seed := filepath.Join(root, "usr/lib/legacy/images")
	store := dockerstore.New(filepath.Join(seed, "docker"))
	for _, a := range archives {
		if err := store.Add(a); err != nil {
			return err
		}
	}
	layers := filepath.Join(seed, "layers")
	if err := os.Mkdir(layers, 0o755); err != nil { //nolint:gosec // Public images.
		return fmt.Errorf("putting the files of layers aside: %w", err)
	}
	found, err := filepath.Glob(filepath.Join(seed, "docker", "overlay2", "*", "diff"))
	if err != nil {
		return fmt.Errorf("putting the files of layers aside: %w", err)
	}
	for _, diff := range found {
		if err := os.Rename(diff, filepath.Join(layers, filepath.Base(filepath.Dir(diff)))); err != nil {
			return fmt.Errorf("putting the files of layers aside: %w", err)
		}
		if err := os.Mkdir(diff, 0o755); err != nil { //nolint:gosec // Public images.
			return fmt.Errorf("putting the files of layers aside: %w", err)
		}
	}
	return nil
}
