// Command flannel-cni writes the container runtime's network configuration as soon as flannel knows the node's subnet.
//
// It takes the place of flannel's own CNI plugin, which does the same at every start of a pod: read the subnet file and hand on to
// the bridge plugin. The subnet of a node never changes, so once is enough.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	subnetFile = "/run/flannel/subnet.env"
	configFile = "/etc/cni/net.d/10-flannel.conflist"
	poll       = time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, subnetFile, configFile)
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run waits for the subnet, writes the configuration and stays, because the container of a DaemonSet must not end.
func run(ctx context.Context, from, to string) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		env, err := readEnv(from)
		if err == nil {
			if err := write(to, env); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func readEnv(path string) (map[string]string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the subnet: %w", err)
	}
	env := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), "="); ok {
			env[key] = value
		}
	}
	if env["FLANNEL_SUBNET"] == "" || env["FLANNEL_NETWORK"] == "" {
		return nil, fmt.Errorf("reading the subnet: %s names no subnet or no network", path)
	}
	return env, nil
}

func write(path string, env map[string]string) error {
	mtu, err := strconv.Atoi(env["FLANNEL_MTU"])
	if err != nil {
		return fmt.Errorf("reading the MTU: %w", err)
	}
	// The file names flannel's own address in the subnet.
	subnet, err := netip.ParsePrefix(env["FLANNEL_SUBNET"])
	if err != nil {
		return fmt.Errorf("reading the subnet: %w", err)
	}
	raw, err := json.MarshalIndent(map[string]any{
		"cniVersion": "0.4.0",
		"name":       "flannel",
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false, "mtu": mtu,
				"ipam": map[string]any{
					"type":   "host-local",
					"ranges": []any{[]any{map[string]any{"subnet": subnet.Masked().String()}}},
					"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		},
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the network configuration: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // Read by everybody.
		return fmt.Errorf("creating the directory of the network configuration: %w", err)
	}
	// The runtime watches the directory: it must never see half a file.
	tmp := filepath.Join(filepath.Dir(path), ".flannel.tmp")
	if err := os.WriteFile(tmp, append(raw, '\n'), 0o644); err != nil { //nolint:gosec // Not a secret.
		return fmt.Errorf("writing the network configuration: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("writing the network configuration: %w", err)
	}
	return nil
}
