package builder

import (
	"fmt"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
)

// Source is an upstream Go module that components are compiled from.
type Source struct {
	// Module and Version name the module whose go.mod decides all dependency
	// versions of the build.
	Module  string
	Version string
	// Siblings maps modules that the upstream repository replaces with local
	// directories to the version that was published with it. A published
	// module ignores its own replace directives, so the generated build
	// module has to repeat them with real versions.
	Siblings func(path string) (version string, ok bool)
}

// buildModule returns the go.mod of the module a source is compiled in: the
// upstream requirements, the upstream module itself, and its local replaces
// turned into published versions. Steps: read, re-pin what was local, require
// the module.
func buildModule(src Source, upstream []byte) ([]byte, error) {
	in, err := modfile.Parse(src.Module+"/go.mod", upstream, nil)
	if err != nil {
		return nil, fmt.Errorf("parsing go.mod of %s %s: %w", src.Module, src.Version, err)
	}

	out := &modfile.File{}
	// The name lies below upstream's so that a patched copy of a main package
	// may import upstream's internal packages.
	if err := out.AddModuleStmt(src.Module + "/lab-build"); err != nil {
		return nil, fmt.Errorf("naming the build module: %w", err)
	}
	if in.Go != nil {
		if err := out.AddGoStmt(in.Go.Version); err != nil {
			return nil, fmt.Errorf("setting the go version: %w", err)
		}
	}
	// The main module's godebug settings apply to a build, not those of its
	// dependencies: without this line a component would run with the defaults
	// of the lab's toolchain instead of those it was released with.
	for _, g := range in.Godebug {
		if err := out.AddGodebug(g.Key, g.Value); err != nil {
			return nil, fmt.Errorf("copying godebug %s: %w", g.Key, err)
		}
	}

	local := map[string]string{}
	for _, r := range in.Replace {
		if !isLocal(r.New) {
			if err := out.AddReplace(r.Old.Path, r.Old.Version, r.New.Path, r.New.Version); err != nil {
				return nil, fmt.Errorf("copying the replacement of %s: %w", r.Old.Path, err)
			}
			continue
		}
		if v, ok := src.sibling(r.Old.Path); ok {
			local[r.Old.Path] = v
		}
	}

	for _, r := range in.Require {
		version := r.Mod.Version
		if v, ok := local[r.Mod.Path]; ok {
			version = v
			if err := out.AddReplace(r.Mod.Path, "", r.Mod.Path, v); err != nil {
				return nil, fmt.Errorf("pinning %s: %w", r.Mod.Path, err)
			}
		}
		out.AddNewRequire(r.Mod.Path, version, r.Indirect)
	}
	out.AddNewRequire(src.Module, src.Version, false)
	out.Cleanup()

	raw, err := out.Format()
	if err != nil {
		return nil, fmt.Errorf("formatting go.mod for %s %s: %w", src.Module, src.Version, err)
	}
	return raw, nil
}

func (s Source) sibling(path string) (string, bool) {
	if s.Siblings == nil {
		return "", false
	}
	return s.Siblings(path)
}

func isLocal(m module.Version) bool {
	return m.Version == "" && (strings.HasPrefix(m.Path, "./") || strings.HasPrefix(m.Path, "../"))
}

// kubernetesSource describes k8s.io/kubernetes: its staging modules are
// published as v0.<minor>.<patch>.
func kubernetesSource(version string) Source {
	staging := "v0." + strings.TrimPrefix(version, "v1.")
	return Source{
		Module:  "k8s.io/kubernetes",
		Version: version,
		Siblings: func(path string) (string, bool) {
			if path == "k8s.io/kube-controller-manager" && staging == "v0.22.17" {
				// The only staging module of that release that was never published. It has types of configuration and nothing else.
				return "v0.22.16", true
			}
			return staging, strings.HasPrefix(path, "k8s.io/")
		},
	}
}

// etcdSource describes one of etcd's modules; all of them are released with
// the same version.
func etcdSource(module, version string) Source {
	return Source{
		Module:  module,
		Version: version,
		Siblings: func(path string) (string, bool) {
			if path == "go.etcd.io/etcd/client/v2" {
				// Published as v2.305.21 with v3.5.21.
				minor, patch, _ := strings.Cut(strings.TrimPrefix(version, "v3."), ".")
				return "v2.30" + minor + "." + patch, true
			}
			return version, strings.HasPrefix(path, "go.etcd.io/etcd/") && path != "go.etcd.io/etcd/tests/v3"
		},
	}
}

// clusterAPISource describes Cluster API, whose types are a module of their
// own since v1.14.
func clusterAPISource(version string) Source {
	return Source{
		Module:  "sigs.k8s.io/cluster-api",
		Version: version,
		Siblings: func(path string) (string, bool) {
			return version, path == "sigs.k8s.io/cluster-api/api"
		},
	}
}
