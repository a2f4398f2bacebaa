package browser

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/debian"
)

const (
	// AxeVersion is the release of axe-core that judges the pages.
	AxeVersion = "4.14.1"
	// axeIntegrity is the registry's sha512 of that release.
	axeIntegrity = "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)

// Chromium returns the path of a Chromium. If there is none and the process is root on a Debian, it installs the package;
// what apt-get says goes to progress.
func Chromium(ctx context.Context, progress io.Writer) (string, error) {
	find := func() (string, error) {
		for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
			if path, err := exec.LookPath(name); err == nil {
				return path, nil
			}
		}
		return "", errors.New("finding chromium: not in PATH")
	}
	if path, err := find(); err == nil {
		return path, nil
	}
	if err := debian.NewApt(progress).Install(ctx, "chromium", "fonts-liberation"); err != nil {
		return "", err
	}
	return find()
}

// npm makes sure that npm is there: the registry's client knows where packages come from.
func npm(ctx context.Context, progress io.Writer) error {
	if _, err := exec.LookPath("npm"); err == nil {
		return nil
	}
	return debian.NewApt(progress).Install(ctx, "npm")
}

// Axe returns the source of axe-core from cacheDir, fetching the pinned package with npm when it is not there. The content is
// verified every time.
func Axe(ctx context.Context, cacheDir string, progress io.Writer) (string, error) {
	if err := os.MkdirAll(cacheDir, 0o750); err != nil {
		return "", fmt.Errorf("creating cache: %w", err)
	}
	name := filepath.Join(cacheDir, "axe-core-"+AxeVersion+".tgz")
	archive, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		if err := npm(ctx, progress); err != nil {
			return "", err
		}
		_, _ = fmt.Fprintf(progress, "npm pack axe-core@%s\n", AxeVersion)
		cmd := exec.CommandContext(ctx, "npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", cacheDir, "axe-core@"+AxeVersion)
		cmd.Dir = cacheDir
		cmd.Stdout, cmd.Stderr = progress, progress
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("fetching axe-core with npm: %w", err)
		}
		archive, err = os.ReadFile(name)
	}
	if err != nil {
		return "", fmt.Errorf("reading axe-core: %w", err)
	}
	sum := sha512.Sum512(archive)
	if got := "sha512-" + base64.StdEncoding.EncodeToString(sum[:]); got != axeIntegrity {
		return "", fmt.Errorf("verifying %s: integrity is %s, want %s; remove the file to fetch it again", name, got, axeIntegrity)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return "", fmt.Errorf("unpacking %s: %w", name, err)
	}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if err != nil {
			return "", fmt.Errorf("finding axe.min.js in %s: %w", name, err)
		}
		if header.Name == "package/axe.min.js" {
			source, err := io.ReadAll(files)
			if err != nil {
				return "", fmt.Errorf("unpacking axe.min.js: %w", err)
			}
			return string(source), nil
		}
	}
}
