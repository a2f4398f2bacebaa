package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/release/artifacts"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/certmanager"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/clusterctl"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "repository:", err)
		os.Exit(1)
	}
}

// run builds what is missing, the programs of cert-manager among it, because a lab offers images of what is in the cache when it starts.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("repository", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("root", "..", "working tree to publish")
	version := flags.String("version", clusterctl.DefaultVersion, "version to publish it as")
	out := flags.String("out", "", "directory to write to (required)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" {
		return errors.New("say where to write with -out DIR")
	}
	dir, err := filepath.Abs(*out)
	if err != nil {
		return fmt.Errorf("finding %s: %w", *out, err)
	}
	b, err := builder.New(builder.Options{Out: stderr})
	if err != nil {
		return err
	}
	names := append(append([]string{builder.Kubectl}, clusterctl.Components()...), certmanager.Programs()...)
	assets, err := b.Ensure(ctx, names...)
	if err != nil {
		return err
	}
	files, err := artifacts.Build(*root, *version)
	if err != nil {
		return err
	}
	config, err := clusterctl.Repository{Dir: dir, Files: files, Version: *version, Assets: assets}.Write()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "export CLUSTERCTL_CONFIG=%s CLUSTERCTL_DISABLE_VERSIONCHECK=true PATH=%s:%s:$PATH\n",
		config, filepath.Dir(assets[builder.Clusterctl]), filepath.Dir(assets[builder.Kubectl]))
	return err
}
