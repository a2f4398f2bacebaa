package guest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
)

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// ContainerImage is a container image of the guest: programs, and for some the tools of the guest's own Debian.
type ContainerImage struct {
	Ref string
	// Programs maps a path in the image to the component that goes there.
	Programs map[string]string
	// Tools adds the layer with shell, iptables and nftables.
	Tools bool
	// Entrypoint of the image; none where kubeadm's manifests name the command.
	Entrypoint []string
	// Links maps a path in the image to what the link there points at.
	Links map[string]string `json:",omitempty"`
	// User that runs the programs; root when empty.
	User string `json:",omitempty"`
	// Env is what programs find in their environment, besides PATH.
	Env []string `json:",omitempty"`
}

// OneProcessor has a Go program run on one processor at a time: where the others are emulated by the same two that everything runs on, keeping them busy costs more than it gives.
const OneProcessor = "GOMAXPROCS=1"

// LessCollecting has a Go program collect garbage half as often: where processors are emulated, memory is not what is short.
const LessCollecting = "GOGC=200"

// SeldomNotifying has etcd tell API servers once a minute, not every five seconds for each of their watches, that nothing has changed. It is for what makes no flag of it: kubeadm of current versions
// sets --watch-progress-notify-interval, and etcd ends at once where the variable of its older name says something as well.
const SeldomNotifying = "ETCD_EXPERIMENTAL_WATCH_PROGRESS_NOTIFY_INTERVAL=1m"

// EtcdImage is etcd under a name, for guests whose processors are emulated: in those that share two processors a message takes up to two seconds to the other one and back, and
// members that hear nothing of their leader for the usual second elect all the time. A flag for any of its variables, and of more, keeps etcd from starting ("shadowed by corresponding
// command-line flag", etcd v3.6, pkg/flags).
func EtcdImage(ref string, more ...string) ContainerImage {
	return ContainerImage{
		Ref: ref, Programs: map[string]string{"/usr/local/bin/etcd": builder.Etcd, "/usr/local/bin/etcdctl": builder.Etcdctl},
		Env: append([]string{"ETCD_HEARTBEAT_INTERVAL=1000", "ETCD_ELECTION_TIMEOUT=10000", OneProcessor, LessCollecting}, more...),
	}
}

// containerImages lists what is preloaded: first what kubeadm asks for, then the lab's own.
func containerImages() []ContainerImage {
	kube := func(name string, tools bool) ContainerImage {
		return ContainerImage{
			Ref: registry + name + ":" + builder.KubernetesVersion, Tools: tools, Programs: map[string]string{"/usr/local/bin/" + name: name},
		}
	}
	return []ContainerImage{
		kube(builder.APIServer, false),
		kube(builder.ControllerManager, false),
		kube(builder.Scheduler, false),
		kube(builder.KubeProxy, true),
		EtcdImage(etcdImage),
		{Ref: coreDNSImage, Programs: map[string]string{"/coredns": builder.CoreDNS}, Entrypoint: []string{"/coredns"}},
		{Ref: pauseImage, Programs: map[string]string{"/pause": Pause}, Entrypoint: []string{"/pause"}},
		{Ref: NetworkImage, Tools: true, Programs: map[string]string{"/opt/bin/flanneld": flannel, "/opt/bin/flannel-cni": flannelCNI}},
		{Ref: EchoImage, Programs: map[string]string{"/echo": Echo}, Entrypoint: []string{"/echo"}},
	}
}

// file is an entry of a layer: a directory, a file or a link.
type file struct {
	dir    bool
	link   string
	source string
	mode   int64
}

// writeArchives writes an archive per image as `ctr images import` reads it: one for all would list them in random order. Steps per
// image: a layer for the programs, with the tools below where wanted, and the configuration, all with the recipe's time stamp.
func writeArchives(dir string, images []ContainerImage, assets builder.Assets, tools map[string]file, epoch time.Time) error {
	toolLayer, err := layer(tools, epoch)
	if err != nil {
		return fmt.Errorf("packing the tools: %w", err)
	}
	for i, ci := range images {
		ref, err := name.NewTag(ci.Ref)
		if err != nil {
			return fmt.Errorf("naming the image %s: %w", ci.Ref, err)
		}
		var layers []v1.Layer
		if ci.Tools {
			layers = append(layers, toolLayer)
		}
		img, err := ci.build(layers, assets, epoch)
		if err != nil {
			return fmt.Errorf("packing the image %s: %w", ci.Ref, err)
		}
		if err := tarball.WriteToFile(filepath.Join(dir, fmt.Sprintf("%02d.tar", i)), ref, img); err != nil {
			return fmt.Errorf("writing the image %s: %w", ci.Ref, err)
		}
	}
	return nil
}

func (ci ContainerImage) build(layers []v1.Layer, assets builder.Assets, epoch time.Time) (v1.Image, error) {
	files := map[string]file{}
	for where, component := range ci.Programs {
		source, ok := assets[component]
		if !ok {
			return nil, fmt.Errorf("component %s was not built", component)
		}
		files[where] = file{source: source, mode: 0o755}
	}
	for where, target := range ci.Links {
		files[where] = file{link: target}
	}
	programs, err := layer(files, epoch)
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, append(layers, programs)...)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Created = v1.Time{Time: epoch}
	config.Config.Env = append([]string{"PATH=" + searchPath}, ci.Env...)
	config.Config.Entrypoint = ci.Entrypoint
	config.Config.User = ci.User
	return mutate.ConfigFile(img, config)
}

// layer packs files in the order of their names, with the directories above them.
func layer(files map[string]file, epoch time.Time) (v1.Layer, error) {
	all := map[string]file{"/tmp": {dir: true, mode: 0o1777}}
	maps.Copy(all, files)
	for p := range files {
		for dir := path.Dir(p); dir != "/" && dir != "."; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = file{dir: true, mode: 0o755}
			}
		}
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, p := range slices.Sorted(maps.Keys(all)) {
		if err := add(w, p, all[p], epoch); err != nil {
			return nil, fmt.Errorf("packing %s: %w", p, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	}, tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithCompressedCaching)
}

func add(w *tar.Writer, p string, f file, epoch time.Time) error {
	header := &tar.Header{Name: p[1:], Mode: f.mode, ModTime: epoch, Format: tar.FormatPAX}
	switch {
	case f.dir:
		header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
		return w.WriteHeader(header)
	case f.link != "":
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.link, 0o777
		return w.WriteHeader(header)
	}
	raw, err := os.ReadFile(f.source)
	if err != nil {
		return err
	}
	header.Typeflag, header.Size = tar.TypeReg, int64(len(raw))
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = w.Write(raw)
	return err
}
