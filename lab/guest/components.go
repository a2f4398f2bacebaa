package guest

import (
	_ "embed"
	"slices"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
)

// Versions of what only guests need; the rest is in the builder.
const (
	flannelVersion  = "v0.26.7"
	criToolsVersion = "v1.36.0"
	ignitionVersion = "v0.36.2"
	programVersion  = "v1"
)

// Names of the components that only guests need.
const (
	flannel    = "flanneld"
	flannelCNI = "flannel-cni"
	// Crictl is what kubeadm's checks ask for.
	Crictl = "crictl"
	// Ignition, Pause and Echo are needed by every image.
	Ignition = "ignition"
	Pause    = "pause"
	Echo     = "echo"
)

var (
	//go:embed programs/pause/main.go
	pauseProgram string
	//go:embed programs/echo/main.go
	echoProgram string
	//go:embed programs/cni/main.go
	cniProgram string
)

// Components are what goes into the image and is compiled, for [builder.Options]. Steps: what the builder knows, CoreDNS with what
// kubeadm's configuration wants, what only guests need.
func Components() []builder.Component {
	wanted := []string{
		builder.Etcd, builder.Etcdctl, builder.APIServer, builder.ControllerManager, builder.Scheduler, builder.Kubectl, builder.Kubeadm,
		builder.Kubelet, builder.KubeProxy, builder.CoreDNS,
	}
	var components []builder.Component
	for _, c := range builder.Default() {
		if !slices.Contains(wanted, c.Name) {
			continue
		}
		if c.Name == builder.CoreDNS {
			c = withPlugins(c, "loop", "metrics")
		}
		components = append(components, c)
	}
	flannelModule := builder.Source{Module: "github.com/flannel-io/flannel", Version: flannelVersion}
	return append(components,
		builder.Component{
			Name: Crictl, Version: criToolsVersion,
			Source:     builder.Source{Module: "sigs.k8s.io/cri-tools", Version: criToolsVersion},
			Package:    "sigs.k8s.io/cri-tools/cmd/crictl",
			LinkerVars: map[string]string{"sigs.k8s.io/cri-tools/pkg/version.Version": criToolsVersion},
		},
		builder.Component{
			Name: flannel, Version: flannelVersion, Source: flannelModule, Package: flannelModule.Module, Patches: fewBackends(),
			LinkerVars: map[string]string{"github.com/flannel-io/flannel/pkg/version.Version": flannelVersion},
		},
		builder.Component{
			Name: Ignition, Version: ignitionVersion, Cgo: true,
			Source:     builder.Source{Module: "github.com/flatcar/ignition", Version: ignitionVersion},
			Package:    "github.com/flatcar/ignition/internal",
			LinkerVars: map[string]string{"github.com/flatcar/ignition/internal/version.Raw": ignitionVersion},
		},
		builder.Component{Name: flannelCNI, Version: programVersion, Program: cniProgram},
		builder.Component{Name: Pause, Version: programVersion, Program: pauseProgram},
		builder.Component{Name: Echo, Version: programVersion, Program: echoProgram},
	)
}

// withPlugins adds plugins of CoreDNS to those that the builder compiles in.
func withPlugins(c builder.Component, names ...string) builder.Component {
	c.Patches = slices.Clone(c.Patches)
	for _, name := range names {
		line := `_ "github.com/coredns/coredns/plugin/` + name + `"`
		if !strings.Contains(c.Patches[0].New, line) {
			c.Patches[0].New += "\n\t" + line
		}
	}
	return c
}

// fewBackends leaves out the ways of transport that need cgo or a cloud's client library.
func fewBackends() []builder.Patch {
	patches := make([]builder.Patch, 0, 7)
	for _, name := range []string{"alloc", "extension", "ipip", "ipsec", "tencentvpc", "udp", "wireguard"} {
		patches = append(patches, builder.Patch{
			File: "main.go",
			Old:  `_ "github.com/flannel-io/flannel/pkg/backend/` + name + `"`,
			New:  "",
			Why:  "the udp backend needs cgo, and the others take minutes to compile for nothing",
		})
	}
	return patches
}
