package proof

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	// metricProcessStart is measured by every Go program with Prometheus' process collector: kubelet and etcd alike.
	metricProcessStart = "process_start_time_seconds"
	// metricServerID has the etcd member's id in its label.
	metricServerID = "etcd_server_id"
	// No line of a metrics page is as long; a page with one is something else.
	maxLine = 1 << 20
)

// ProcessStart reads when the process started that wrote the metrics, in the text format of Prometheus.
func ProcessStart(metrics []byte) (time.Time, error) {
	var started time.Time
	err := eachSample(metrics, func(name, _, value string) error {
		if name != metricProcessStart {
			return nil
		}
		seconds, err := strconv.ParseFloat(value, 64)
		if err != nil || seconds <= 0 || seconds > math.MaxInt32*2 {
			return fmt.Errorf("%s is %q", metricProcessStart, value)
		}
		// The kernel counts in hundredths of a second; more digits are rounding errors.
		started = time.UnixMilli(int64(math.Round(seconds*100)) * 10).UTC()
		return nil
	})
	if err == nil && started.IsZero() {
		err = errors.New("there is no " + metricProcessStart + " among its metrics")
	}
	return started, err
}

// serverID reads which etcd member wrote the metrics; empty when they do not say.
func serverID(metrics []byte) (string, error) {
	id := ""
	err := eachSample(metrics, func(name, labels, _ string) error {
		if name == metricServerID {
			_, rest, _ := strings.Cut(labels, `server_id="`)
			id, _, _ = strings.Cut(rest, `"`)
		}
		return nil
	})
	return id, err
}

// eachSample calls visit for every sample, with the labels as they are written. Only the two samples above are of interest: a
// parser of the whole format would fail for reasons that do not matter here.
func eachSample(metrics []byte, visit func(name, labels, value string) error) error {
	lines := bufio.NewScanner(bytes.NewReader(metrics))
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		end := strings.IndexAny(line, "{ ")
		if end < 0 {
			continue
		}
		name, labels, rest := line[:end], "", line[end:]
		if name != metricProcessStart && name != metricServerID {
			continue
		}
		if rest[0] == '{' {
			closing := strings.LastIndexByte(rest, '}')
			labels, rest = rest[:closing+1], rest[closing+1:]
		}
		value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if err := visit(name, labels, value); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading its metrics: %w", err)
	}
	return nil
}
