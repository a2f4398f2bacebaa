// Command lab runs a management cluster on this machine. See the package cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/cli"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The supervisor outlives the reader of its output.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
	code := cli.Run(ctx, cli.Streams{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		CloseOut: func() { _ = os.Stdout.Close() },
	}, os.Args[1:])
	cancel()
	os.Exit(code)
}
