// Command migrate takes legacy KVM clusters to Cluster API.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	_ "time/tzdata" // time zones also where the machine has none

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
)

// version, commit and date are set by the linker.
var version, commit, date string

func main() { os.Exit(run()) }

// tune lets memory grow to four times what is live before it is collected, up to a soft limit: a plan lives for a fraction of a
// second, and a fleet is worked through one cluster after the other. GOGC and GOMEMLIMIT, where set, win.
func tune() {
	const percent, limit = 400, 384 << 20
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}

func run() int {
	tune()
	soft, hard, stop := interruptible()
	defer stop()
	cli.PrepareProcess()
	return int(cli.Run(soft, cli.App{
		Hard: hard,
		In:   os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ(), Version: built(),
		BridgeLogs: func(log logr.Logger) {
			klog.SetLogger(log)
			ctrllog.SetLogger(log)
		},
	}, os.Args[1:]))
}

// interruptible returns a context that the first Ctrl-C ends, and one that the second ends: what changes a cluster stops at a safe point
// first. The third ends the program.
func interruptible() (soft, hard context.Context, stop func()) {
	soft, endSoft := context.WithCancel(context.Background())
	hard, endHard := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		endSoft()
		<-signals
		signal.Stop(signals)
		endHard()
	}()
	return soft, hard, func() {
		signal.Stop(signals)
		endSoft()
		endHard()
	}
}

// built returns what the linker says, else what the Go tool recorded.
func built() cli.Version {
	v := cli.Version{Version: version, Commit: commit, Date: date, Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if v.Version == "" {
		v.Version = info.Main.Version
	}
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision" && v.Commit == "":
			v.Commit = setting.Value
		case setting.Key == "vcs.time" && v.Date == "":
			v.Date = setting.Value
		}
	}
	if v.Version == "" || v.Version == "(devel)" {
		v.Version = "devel"
	}
	return v
}
