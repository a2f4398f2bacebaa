package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/release/artifacts"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		// There is nowhere to tell that stderr is gone.
		_, _ = fmt.Fprint(stderr, "Writes the files of a release: components, metadata, cluster templates, ClusterClass.\n\n"+
			"Usage: go run ./hack/release -version VERSION [-out DIR] [-root DIR]\n\n")
		flags.PrintDefaults()
	}
	root := flags.String("root", ".", "working tree with config/, templates/ and metadata.yaml")
	version := flags.String("version", "", "version of the release and tag of its images, such as v0.1.0")
	out := flags.String("out", "out", "directory to write to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	files, err := artifacts.Build(*root, *version)
	if err != nil {
		return err
	}
	names, err := files.Write(*out)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, strings.Join(names, "\n"))
	return err
}
