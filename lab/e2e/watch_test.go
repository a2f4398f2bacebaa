//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// watchPause is the time between a watch that an API server has ended and the next.
const watchPause = 5 * time.Second

// workloadIsWatched tells what the API says of the customer's workload from now on, as it changes: of its pods, and of the addresses that every kube-proxy is to lead to. A request that nobody
// answered is explained by that: either the API had it wrong, or whoever led there had not heard of it yet. What it returns ends that.
func (w *world) workloadIsWatched(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var watches sync.WaitGroup
	for _, args := range [][]string{
		{"pods", "-l", "app=echo", "-o", `custom-columns=N:.metadata.name,NODE:.spec.nodeName,READY:.status.conditions[?(@.type=="Ready")].status,GOES:.metadata.deletionTimestamp`},
		{"endpointslices", "-l", "kubernetes.io/service-name=echo", "-o", "custom-columns=N:.metadata.name,PODS:.endpoints[*].targetRef.name,READY:.endpoints[*].conditions.ready"},
	} {
		watches.Go(func() {
			for ctx.Err() == nil {
				w.tellChanges(ctx, append([]string{"get", "-n", "shop", "--watch", "--no-headers"}, args...))
				select {
				case <-ctx.Done():
				case <-w.clock.After(watchPause):
				}
			}
		})
	}
	return func() {
		cancel()
		watches.Wait()
	}
}

// tellChanges tells each new line of a watch until it ends. That it ends is nothing to fail by: API servers do that, and one that goes does it for good.
func (w *world) tellChanges(ctx context.Context, args []string) {
	argv := w.inside(append([]string{w.kubectl, "--kubeconfig", w.workload()}, args...)...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		w.say("  watching the workload: %v", err)
		return
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		w.say("  by the API at %s: %s", w.clock.Now().UTC().Format(time.TimeOnly+"Z"), strings.Join(strings.Fields(lines.Text()), " "))
	}
	if err := cmd.Wait(); err != nil && ctx.Err() == nil {
		w.say("  watching the workload ended: %v", err)
	}
}
