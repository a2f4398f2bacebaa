package legacy

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkLoad measures opening a snapshot and loading its one cluster.
func BenchmarkLoad(b *testing.B) {
	for _, id := range []string{"al9qy", "b4n9x"} {
		json := filepath.Join(b.TempDir(), "snapshot")
		require.NoError(b, WriteSnapshot(b.Context(), open(b, fixture(id)), nil, json, SnapshotOptions{}))
		for name, dir := range map[string]string{"YAML": fixture(id), "JSON": json, "inventory": json} {
			b.Run(id+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				before := cpuTime(b)
				for b.Loop() {
					source, err := Open(b.Context(), dir, Options{})
					require.NoError(b, err)
					if name == "inventory" {
						_, err = LoadInventory(b.Context(), source, id)
					} else {
						_, err = source.Load(b.Context(), id)
					}
					require.NoError(b, err)
					require.NoError(b, source.Close())
				}
				b.ReportMetric((cpuTime(b)-before).Seconds()*1000/float64(b.N), "cpu-ms/op")
				reportPeak(b)
			})
		}
	}
}

// BenchmarkLiveFleet looks at a management cluster whose lists are read already. There are as many definitions as Cluster API has, with schemas as large.
func BenchmarkLiveFleet(b *testing.B) {
	source := NewLive(definitions(b, 60), "mc", Options{})
	b.ReportAllocs()
	for b.Loop() {
		fleet, err := source.Fleet(b.Context())
		require.NoError(b, err)
		require.Len(b, fleet.CRDs, 60)
	}
}

// fleetSnapshot writes a snapshot of n clusters by copying one cluster's files under other ids.
// LEGACY_FLEET_SIZE asks for another number of clusters.
func fleetSnapshot(b *testing.B, n int) string {
	b.Helper()
	one := filepath.Join(b.TempDir(), "one")
	require.NoError(b, WriteSnapshot(b.Context(), open(b, fixture("b4n9x")), nil, one, SnapshotOptions{}))
	dir := filepath.Join(b.TempDir(), "fleet")
	entries, err := os.ReadDir(filepath.Join(one, "b4n9x"))
	require.NoError(b, err)
	var ids []string
	for i := range n {
		id := fmt.Sprintf("a%04d", i)
		ids = append(ids, id)
		for _, entry := range append(entries, nil) {
			name := filepath.Join("workload-cluster", "nodes.json")
			if entry != nil {
				name = entry.Name()
			}
			if name == "workload-cluster" {
				continue
			}
			text, err := os.ReadFile(filepath.Join(one, "b4n9x", name))
			require.NoError(b, err)
			full := filepath.Join(dir, id, name)
			require.NoError(b, os.MkdirAll(filepath.Dir(full), 0o700))
			require.NoError(b, os.WriteFile(full, []byte(strings.ReplaceAll(string(text), "b4n9x", id)), 0o600))
		}
	}
	marker, err := json.Marshal(snapshotMarker{SnapshotAPIVersion, SnapshotKind, "", true, ids})
	require.NoError(b, err)
	require.NoError(b, os.WriteFile(filepath.Join(dir, SnapshotMarker), marker, 0o600))
	return dir
}

// BenchmarkIndexFleet measures the index of a fleet, then an inventory and the full pictures of all its clusters.
func BenchmarkIndexFleet(b *testing.B) {
	n := 50
	if size := os.Getenv("LEGACY_FLEET_SIZE"); size != "" {
		_, err := fmt.Sscan(size, &n)
		require.NoError(b, err)
	}
	dir := fleetSnapshot(b, n)
	for name, load := range map[string]func(context.Context, Source, string) error{
		"index":     nil,
		"inventory": func(ctx context.Context, s Source, id string) error { _, err := LoadInventory(ctx, s, id); return err },
		"load":      func(ctx context.Context, s Source, id string) error { _, err := s.Load(ctx, id); return err },
	} {
		b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
			b.ReportAllocs()
			before := cpuTime(b)
			for b.Loop() {
				source, err := Open(b.Context(), dir, Options{})
				require.NoError(b, err)
				ids, err := source.IDs(b.Context())
				require.NoError(b, err)
				require.Len(b, ids, n)
				if load != nil {
					loadAll(b, source, ids, load)
				}
				require.NoError(b, source.Close())
			}
			b.ReportMetric((cpuTime(b)-before).Seconds()/float64(b.N), "cpu-s/op")
			reportPeak(b)
		})
	}
}

// cpuTime is what the process has used so far: unlike wall time it means something on a busy machine.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// loadAll works through a fleet on two goroutines, as the commands do.
func loadAll(b *testing.B, source Source, ids []string, load func(context.Context, Source, string) error) {
	b.Helper()
	work := make(chan string)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for id := range work {
				if err := load(b.Context(), source, id); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for _, id := range ids {
		work <- id
	}
	close(work)
	wg.Wait()
}

// reportPeak reports the largest resident set the process has had, where the system tells.
func reportPeak(b *testing.B) {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(status)) {
		var kilobytes float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kilobytes); n == 1 {
			b.ReportMetric(kilobytes/1024, "peak-MiB")
		}
	}
}
