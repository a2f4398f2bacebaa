package builder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// openAPIPackage is generated in Kubernetes' own build.
	openAPIPackage = "k8s.io/kubernetes/pkg/generated/openapi"
	openAPITool    = "k8s.io/kube-openapi/cmd/openapi-gen"
	openAPIMark    = "+k8s:openapi-gen=true"
)

// generateOpenAPI puts the generated API descriptions into a vendor directory of the build module and makes the build use it. Steps:
// vendor the component and the generator, compile the generator, run it over every package that asks for descriptions.
func (t *toolchain) generateOpenAPI(ctx context.Context, component string) error {
	// Nothing else in the module imports them. The constraint keeps the file out of the build: a program cannot be imported.
	pins := "//go:build tools\n// +build tools\n\npackage build\n\nimport (\n\t_ \"" + component + "\"\n\t_ \"" + openAPITool + "\"\n)\n"
	if err := t.write("tools.go", []byte(pins)); err != nil {
		return err
	}
	if err := t.run(ctx, t.file, "mod", "vendor"); err != nil {
		return err
	}
	t.vendored = true
	tool := filepath.Join(t.dir, "openapi-gen")
	if err := t.run(ctx, t.file, "build", "-o", tool, openAPITool); err != nil {
		return err
	}
	inputs, err := describedPackages(filepath.Join(t.dir, "vendor"))
	if err != nil {
		return err
	}
	if err := t.write("header.txt", nil); err != nil {
		return err
	}
	// The generator of that time finds packages only below a GOPATH.
	gopath := filepath.Join(t.dir, "gopath")
	if err := os.Mkdir(gopath, 0o755); err != nil { //nolint:gosec // Public build files.
		return fmt.Errorf("creating a GOPATH: %w", err)
	}
	if err := os.Symlink(filepath.Join(t.dir, "vendor"), filepath.Join(gopath, "src")); err != nil {
		return fmt.Errorf("creating a GOPATH: %w", err)
	}
	var root bytes.Buffer
	if err := t.run(ctx, &root, "env", "GOROOT"); err != nil {
		return err
	}
	old := &toolchain{dir: filepath.Join(gopath, "src", "k8s.io", "kubernetes"), log: t.log, file: t.file}
	env := append(os.Environ(), "GO111MODULE=off", "GOFLAGS=", "GOPATH="+gopath, "GOROOT="+strings.TrimSpace(root.String()), "PWD="+old.dir)
	return old.exec(ctx, t.file, env, tool,
		"--input-dirs", strings.Join(inputs, ","), "--output-package", openAPIPackage, "--output-base", filepath.Join(gopath, "src"),
		"--output-file-base", "zz_generated.openapi", "--go-header-file", filepath.Join(t.dir, "header.txt"),
		"--report-filename", filepath.Join(t.dir, "violations.txt"))
}

// describedPackages lists the vendored packages of Kubernetes that ask for descriptions.
func describedPackages(vendor string) ([]string, error) {
	found := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(vendor, "k8s.io"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(p) != ".go" {
			return err
		}
		raw, err := os.ReadFile(p)
		if err != nil || !bytes.Contains(raw, []byte(openAPIMark)) {
			return err
		}
		rel, err := filepath.Rel(vendor, p)
		if err != nil {
			return err
		}
		// The generator mentions the mark and describes nothing.
		if dir := path.Dir(filepath.ToSlash(rel)); !strings.HasPrefix(dir, "k8s.io/kube-openapi/") {
			found[dir] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("looking for packages with API descriptions: %w", err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("looking for packages with API descriptions in %s: %w", vendor, errors.ErrUnsupported)
	}
	packages := make([]string, 0, len(found))
	for p := range found {
		packages = append(packages, p)
	}
	slices.Sort(packages)
	return packages, nil
}
