package builder

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/guard"
)

// Component is one thing the builder can put into the cache.
type Component struct {
	// Name is the file name of the binary and the name used in Ensure.
	Name string
	// Version is shown to people and is part of the cache path.
	Version string
	// Source is the module it comes from; empty for the lab's own guard.
	Source Source
	// Package is the main package to compile. Without one the component is a
	// set of files copied from the module, see Files.
	Package string
	// LinkerVars are set with -X: upstream binaries get their version only so.
	LinkerVars map[string]string
	// Patches change single lines of the main package at compile time.
	Patches []Patch
	// Files are directories to copy out of the module (from -> to).
	Files map[string]string
	// Program is a complete main.go: for a binary without upstream module, or one that puts together packages of Source, its internal
	// ones too.
	Program string
	// Cgo compiles with the machine's C compiler and links statically.
	Cgo bool
	// Optional components are only built when named.
	Optional bool
	// Release is the Go release to compile with (go1.17.13), for components
	// too old for the one that runs the lab.
	Release string
	// OpenAPI generates the package with Kubernetes' API descriptions, which
	// was not published before 1.24 and without which the API server does not
	// compile.
	OpenAPI bool
}

// Patch replaces one piece of text in a source file of the main package. It must
// occur exactly once: an upstream change then fails the build instead of
// silently losing the patch.
type Patch struct {
	// File is the file's name within the package.
	File string
	Old  string
	New  string
	// Why is required reading for whoever bumps the version.
	Why string
}

// Default lists all components, in the order in which they are built: what a
// plain API server needs comes first.
func Default() []Component {
	k8s := kubernetesSource(KubernetesVersion)
	etcd := etcdSource("go.etcd.io/etcd/server/v3", EtcdVersion)
	etcdctl := etcdSource("go.etcd.io/etcd/etcdctl/v3", EtcdVersion)
	capi := clusterAPISource(ClusterAPIVersion)

	kube := func(name string, optional bool) Component {
		return Component{
			Name: name, Version: KubernetesVersion, Source: k8s, Optional: optional,
			Package:    "k8s.io/kubernetes/cmd/" + name,
			LinkerVars: kubernetesVersionVars(KubernetesVersion),
		}
	}
	clusterAPI := func(name, dir string, patches ...Patch) Component {
		return Component{
			Name: name, Version: ClusterAPIVersion, Source: capi,
			Package:    "sigs.k8s.io/cluster-api/" + dir,
			LinkerVars: versionVars("sigs.k8s.io/cluster-api/version", ClusterAPIVersion),
			Patches:    patches,
		}
	}

	ctl := clusterAPI(Clusterctl, "cmd/clusterctl")
	ctl.Optional = true

	return append([]Component{
		{Name: Guard, Version: "v1", Program: guard.Program},
		{Name: Etcd, Version: EtcdVersion, Source: etcd, Package: "go.etcd.io/etcd/server/v3"},
		kube(APIServer, false),
		kube(ControllerManager, false),
		kube(Scheduler, false),
		kube(Kubectl, false),
		{
			Name: ClusterAPIManifests, Version: ClusterAPIVersion, Source: capi,
			Files: map[string]string{
				"core/config":                 ClusterAPICore,
				"bootstrap/kubeadm/config":    ClusterAPIBootstrap,
				"controlplane/kubeadm/config": ClusterAPIControl,
			},
		},
		clusterAPI(ClusterAPICore, "core", webhookOnLoopback()),
		clusterAPI(ClusterAPIBootstrap, "bootstrap/kubeadm", webhookOnLoopback()),
		clusterAPI(ClusterAPIControl, "controlplane/kubeadm", webhookOnLoopback()),
		ctl,
		{Name: Etcdctl, Version: EtcdVersion, Source: etcdctl, Package: "go.etcd.io/etcd/etcdctl/v3", Optional: true},
		kube(Kubeadm, true),
		kube(Kubelet, true),
		kube(KubeProxy, true),
		{
			Name: CoreDNS, Version: CoreDNSVersion, Optional: true,
			Source:  Source{Module: coreDNSModule, Version: CoreDNSVersion},
			Package: coreDNSModule,
			Patches: []Patch{fewPlugins()},
		},
		{
			Name: Fortio, Version: FortioVersion, Optional: true, Package: fortioModule,
			Source: Source{Module: fortioModule, Version: FortioVersion},
		},
	}, certManager()...)
}

const fortioModule = "fortio.org/fortio"

// WebhookHostEnv is read by the Cluster API managers of the builder: the
// address their webhook server listens on, loopback when it is not set.
const WebhookHostEnv = "LAB_WEBHOOK_HOST"

// webhookOnLoopback makes a Cluster API manager's webhook server listen on
// 127.0.0.1, unless the environment names another address: in a pod it has to
// be reachable from outside.
func webhookOnLoopback() Patch {
	return Patch{
		File: "main.go",
		Old:  "Port:     webhookPort,",
		New: `Host: func() string {
			if host, ok := os.LookupEnv("` + WebhookHostEnv + `"); ok {
				return host
			}
			return "127.0.0.1"
		}(), Port: webhookPort,`,
		Why: "the managers have no flag for the webhook's address and would listen on every interface",
	}
}

const coreDNSModule = "github.com/coredns/coredns"

// fewPlugins makes a CoreDNS of the plugins that the lab configures. All of
// them, with the client libraries of every cloud, take ten times as long.
func fewPlugins() Patch {
	imports := make([]string, 0, 12)
	for _, name := range []string{
		"bind", "cache", "errors", "forward", "health", "hosts", "kubernetes", "loadbalance", "log", "ready", "reload", "template",
	} {
		imports = append(imports, `_ "`+coreDNSModule+"/plugin/"+name+`"`)
	}
	return Patch{
		File: "coredns.go",
		Old:  `_ "` + coreDNSModule + `/core/plugin" // Plug in CoreDNS.`,
		New:  strings.Join(imports, "\n\t"),
		Why:  "the import pulls in every plugin",
	}
}

func kubernetesVersionVars(version string) map[string]string {
	vars := versionVars("k8s.io/component-base/version", version)
	maps.Copy(vars, versionVars("k8s.io/client-go/pkg/version", version))
	return vars
}

func versionVars(pkg, version string) map[string]string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return map[string]string{
		pkg + ".gitVersion":   version,
		pkg + ".gitMajor":     parts[0],
		pkg + ".gitMinor":     parts[1],
		pkg + ".gitTreeState": "clean",
	}
}

// dirName is the component's directory below bin/ or share/.
func (c Component) dirName() (string, error) {
	if c.Package == "" && c.Program == "" {
		return c.Name + "-" + c.Version, nil
	}
	// The fields are exported and marshal with sorted map keys: the same
	// recipe always has the same digest.
	raw, err := json.Marshal(struct {
		Package, Program, Toolchain string
		LinkerVars                  map[string]string
		Patches                     []Patch
		Cgo                         bool `json:",omitempty"`
		OpenAPI                     bool `json:",omitempty"`
	}{c.Package, c.Program, cmp.Or(c.Release, runtime.Version()), c.LinkerVars, c.Patches, c.Cgo, c.OpenAPI})
	if err != nil {
		return "", fmt.Errorf("digesting the recipe of %s: %w", c.Name, err)
	}
	sum := sha256.Sum256(raw)
	return strings.Join([]string{c.Name, c.Version, runtime.GOOS, runtime.GOARCH, hex.EncodeToString(sum[:4])}, "-"), nil
}
