package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// options are the flags.
type options struct {
	clusters, workers  int
	first              int
	fresh              bool
	organization       string
	minNodes, maxNodes int
	out, base          string
}

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	bases, err := loadRecordings(o.base)
	if err != nil {
		return err
	}
	if o.fresh {
		for _, base := range bases {
			if err := base.refresh(time.Now()); err != nil {
				return err
			}
		}
	}
	return produce(o, bases, stdout)
}

func loadRecordings(base string) ([]*recording, error) {
	var recordings []*recording
	for _, id := range []string{"al9qy", "b4n9x"} {
		r, err := loadRecording(base, id)
		if err != nil {
			return nil, err
		}
		recordings = append(recordings, r)
	}
	return recordings, nil
}

// produce plans the fleet, writes it, and prints what was written.
func produce(o options, bases []*recording, stdout io.Writer) error {
	clusters := planFleet(o, bases)
	h, err := planHosts(clusters)
	if err != nil {
		return err
	}
	if err := prepare(o.out); err != nil {
		return err
	}
	if err := writeClusters(o.out, clusters, h); err != nil {
		return err
	}
	lists, err := management(managementDirectory(o.base), clusters, h)
	if err != nil {
		return err
	}
	if err := writeLists(filepath.Join(o.out, "management-cluster"), lists); err != nil {
		return err
	}
	nodes, defects := 0, 0
	var text strings.Builder
	for _, c := range clusters {
		nodes += c.masters + c.workers
		if c.defect != healthy {
			defects++
			fmt.Fprintf(&text, "%s: %s\n", c.id, c.defect)
		}
	}
	fmt.Fprintf(&text, "%d clusters with %d nodes on %d hosts in %s, %d with a defect\n", len(clusters), nodes, h.masters+h.workers, o.out, defects)
	_, err = io.WriteString(stdout, text.String())
	return err
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		// There is nowhere to tell that stderr is gone.
		_, _ = fmt.Fprint(stderr, "Makes many believable legacy clusters out of the recorded ones, as a snapshot directory.\n\n"+
			"Usage: go run ./hack/fleet -o DIR [-n 500] [-nodes 3..15 | -workers N] [-base DIR]\n\n")
		flags.PrintDefaults()
	}
	flags.IntVar(&o.clusters, "n", 500, "number of clusters")
	flags.IntVar(&o.first, "first", 0, "number of the first cluster; the numbers below belong to somebody else's part of the same fleet")
	flags.BoolVar(&o.fresh, "fresh-ca", false, "sign with a key made now, valid from now on, instead of the recordings' key and dates; the output is then new every time")
	flags.StringVar(&o.organization, "organization", "", "owner of every cluster, instead of one of twenty")
	flags.StringVar(&o.out, "o", "", "directory to write; must be new or empty")
	mix := flags.String("nodes", "3..15", "smallest and largest number of nodes per cluster, the master included")
	flags.IntVar(&o.workers, "workers", 0, "exact number of workers of every cluster, instead of -nodes")
	flags.StringVar(&o.base, "base", "testdata/fixtures", "directory with the recordings al9qy and b4n9x; management-cluster lies beside it")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if _, err := fmt.Sscanf(*mix, "%d..%d", &o.minNodes, &o.maxNodes); err != nil {
		return o, fmt.Errorf("-nodes %q: want two numbers like 3..15", *mix)
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.out == "":
		return o, errors.New("-o is missing: name the directory to write")
	case o.clusters < 1 || o.first < 0 || o.first+o.clusters > maxClusters:
		return o, fmt.Errorf("-n %d -first %d: want 1 to %d clusters in all, each has a network of its own", o.clusters, o.first, maxClusters)
	case o.minNodes < 2 || o.maxNodes < o.minNodes:
		return o, fmt.Errorf("-nodes %s: want at least 2, and the second number not smaller", *mix)
	case o.workers < 0:
		return o, fmt.Errorf("-workers %d: want a positive number", o.workers)
	}
	return o, nil
}

// prepare makes the output directory and refuses to mix two fleets.
func prepare(directory string) error {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return fmt.Errorf("making output directory: %w", err)
	}
	entries, err := os.ReadDir(directory)
	if err != nil {
		return fmt.Errorf("looking into output directory: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("output directory %s is not empty", directory)
	}
	return nil
}

// writeClusters renders and writes clusters on all processors; only clusters in work are in memory.
func writeClusters(directory string, clusters []fleetCluster, h hosts) error {
	var (
		group sync.WaitGroup
		lock  sync.Mutex
		first error
		queue = make(chan fleetCluster)
	)
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for c := range queue {
				if err := writeCluster(filepath.Join(directory, c.id), c, h); err != nil {
					lock.Lock()
					first = errors.Join(first, fmt.Errorf("writing cluster %s: %w", c.id, err))
					lock.Unlock()
				}
			}
		})
	}
	for _, c := range clusters {
		queue <- c
	}
	close(queue)
	group.Wait()
	return first
}

func writeCluster(directory string, c fleetCluster, h hosts) error {
	lists, authority, err := c.render(h)
	if err != nil {
		return err
	}
	if err := writeLists(directory, lists); err != nil {
		return err
	}
	return writeFiles(filepath.Join(directory, "ca"), authority)
}

func writeLists(directory string, lists map[string][][]byte) error {
	files := map[string][]byte{}
	for name, items := range lists {
		var content bytes.Buffer
		content.WriteString("{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n")
		content.Write(bytes.Join(items, []byte(",\n")))
		content.WriteString("\n]}\n")
		files[name] = content.Bytes()
	}
	return writeFiles(directory, files)
}

func writeFiles(directory string, files map[string][]byte) error {
	for name, content := range files {
		target := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return fmt.Errorf("making directory of %s: %w", name, err)
		}
		if err := os.WriteFile(target, content, 0o600); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	return nil
}
