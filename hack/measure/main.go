// Command measure runs a command several times and prints wall time, processor time and peak memory of the whole process, as the
// operating system accounts for them: minimum, median and maximum.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

func main() { os.Exit(run()) }

func run() int {
	runs := flag.Int("runs", 5, "how often the command is run and counted, after one run that is not")
	name := flag.String("name", "", "what the line is called; the command by default")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := measure(ctx, os.Stdout, *name, *runs, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		return 1
	}
	return 0
}

// cost is what one run cost.
type cost struct {
	wall, cpu time.Duration
	// peak is the resident memory in KiB.
	peak int64
}

func measure(ctx context.Context, out io.Writer, name string, runs int, command []string) error {
	if len(command) == 0 || runs < 1 {
		return errors.New("usage: measure [-runs N] [-name NAME] -- COMMAND [ARGUMENT ...]")
	}
	if name == "" {
		name = command[0]
	}
	all := make([]cost, 0, runs)
	for i := range runs + 1 {
		if runs == 1 && i == 0 {
			continue // a single long run needs no warming up
		}
		one, err := once(ctx, command)
		if err != nil {
			return err
		}
		if i > 0 {
			all = append(all, one)
		}
	}
	seconds := func(value func(cost) time.Duration) string {
		sorted := make([]time.Duration, 0, len(all))
		for _, r := range all {
			sorted = append(sorted, value(r))
		}
		slices.Sort(sorted)
		return fmt.Sprintf("min %.3f  median %.3f  max %.3f s", sorted[0].Seconds(), sorted[len(sorted)/2].Seconds(), sorted[len(sorted)-1].Seconds())
	}
	peak := int64(0)
	for _, r := range all {
		peak = max(peak, r.peak)
	}
	_, err := fmt.Fprintf(out, "%-36s wall %s   cpu %s   peak %d MiB   (%d runs)\n", name,
		seconds(func(r cost) time.Duration { return r.wall }), seconds(func(r cost) time.Duration { return r.cpu }), peak/1024, len(all))
	return err
}

func once(ctx context.Context, command []string) (cost, error) {
	process := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // G204: running the given command is the purpose.
	process.Stderr = os.Stderr
	start := time.Now()
	err := process.Run()
	wall := time.Since(start)
	if err != nil {
		return cost{}, fmt.Errorf("running %s: %w", command[0], err)
	}
	usage, ok := process.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return cost{}, errors.New("this system does not account for processes")
	}
	return cost{wall: wall, cpu: process.ProcessState.UserTime() + process.ProcessState.SystemTime(), peak: usage.Maxrss}, nil
}
