package seed

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
)

const (
	// labelNoCloud is the label cloud-init looks for, labelAgent one it does not look for.
	labelNoCloud = "CIDATA"
	labelAgent   = "CAPK"
	agentName    = "vm-agent"
	// maxBootstrapBytes bounds bootstrap data: a Secret has at most a mebibyte.
	maxBootstrapBytes = 2 << 20
)

// Bootstrap is what Cluster API's bootstrap provider made for the machine. It is secret.
type Bootstrap struct {
	Format contract.Format
	Value  []byte
}

// ReadBootstrap reads the mounted bootstrap Secret. What is wrong leads to contract.ExitBootstrap.
func ReadBootstrap(dir string) (*Bootstrap, error) {
	value, err := os.ReadFile(filepath.Join(dir, "value"))
	if err != nil {
		return nil, exit.Errorf(contract.ExitBootstrap, "bootstrap data are missing: %w; the Machine's bootstrap Secret needs the key value", err)
	}
	if len(value) == 0 || len(value) > maxBootstrapBytes {
		return nil, exit.Errorf(contract.ExitBootstrap, "bootstrap data have %d bytes, 1 to %d are allowed", len(value), maxBootstrapBytes)
	}
	format, err := os.ReadFile(filepath.Join(dir, "format"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		// The contract of bootstrap providers: no format means cloud-config.
		format = []byte(contract.FormatCloudConfig)
	case err != nil:
		return nil, exit.Errorf(contract.ExitBootstrap, "reading the format of the bootstrap data: %w", err)
	}
	b := &Bootstrap{Format: contract.Format(strings.TrimSpace(string(format))), Value: value}
	if b.Format != contract.FormatCloudConfig && b.Format != contract.FormatIgnition {
		return nil, exit.Errorf(contract.ExitBootstrap, "bootstrap data have the format %q, only %s and %s are understood",
			b.Format, contract.FormatCloudConfig, contract.FormatIgnition)
	}
	return b, nil
}

// Input is all a seed is made of.
type Input struct {
	Config *contract.Config
	// Guest is the agent's configuration with everything filled in.
	Guest contract.GuestConfig
	// Address and MAC are the guest's.
	Address   netip.Addr
	MAC       string
	Bootstrap *Bootstrap
	// Agent is the path of the guest agent's program.
	Agent string
}

// Seed is where the parts are.
type Seed struct {
	// Disk is an ISO 9660 image.
	Disk string
	// Ignition is the configuration for fw_cfg; empty for guests with cloud-init.
	Ignition string
}

// Write makes the seed in dir, which should be memory: it holds secrets.
func Write(dir string, in *Input) (*Seed, error) {
	agent, err := os.ReadFile(in.Agent)
	if err != nil {
		return nil, fmt.Errorf("reading the guest agent: %w", err)
	}
	files, label, err := in.files()
	if err != nil {
		return nil, err
	}
	files[agentName] = agent
	made := &Seed{Disk: filepath.Join(dir, "seed.iso")}
	if err := writeISO(made.Disk, label, files); err != nil {
		return nil, fmt.Errorf("writing the seed disk: %w", err)
	}
	if in.Bootstrap.Format != contract.FormatIgnition {
		return made, nil
	}
	merged, err := MergeIgnition(in.Bootstrap.Value, in.additions())
	if err != nil {
		return nil, exit.Errorf(contract.ExitBootstrap, "bootstrap data: %w", err)
	}
	made.Ignition = filepath.Join(dir, "ignition.json")
	if err := os.WriteFile(made.Ignition, merged, 0o600); err != nil {
		return nil, fmt.Errorf("writing the Ignition configuration: %w", err)
	}
	return made, nil
}

// files are the texts on the disk, and its label.
func (in *Input) files() (map[string][]byte, string, error) {
	machine, err := json.MarshalIndent(in.Guest, "", "  ")
	if err != nil {
		return nil, "", fmt.Errorf("encoding the agent's configuration: %w", err)
	}
	files := map[string][]byte{"machine.json": append(machine, '\n'), "metadata.env": []byte(in.environment())}
	if in.Bootstrap.Format == contract.FormatIgnition {
		return files, labelAgent, nil
	}
	meta, err := yaml.Marshal(map[string]string{
		// cloud-init reads local-hostname. Bootstrap data that were written for other providers, or as this one was first proposed, ask for hostname.
		"instance-id": in.Config.Name, "local-hostname": in.Config.Name, "hostname": in.Config.Name,
		"local_ipv4": in.Address.String(), "local-ipv4": in.Address.String(), "provider-id": in.Config.ProviderID,
	})
	if err != nil {
		return nil, "", fmt.Errorf("encoding meta-data: %w", err)
	}
	network, err := yaml.Marshal(map[string]any{"version": 2, "ethernets": map[string]any{"primary": map[string]any{
		"match": map[string]string{"macaddress": in.MAC}, "dhcp4": true, "dhcp6": false,
	}}})
	if err != nil {
		return nil, "", fmt.Errorf("encoding network-config: %w", err)
	}
	files["meta-data"], files["network-config"] = meta, network
	files["user-data"], files["vendor-data"] = in.Bootstrap.Value, []byte(boothook)
	return files, labelNoCloud, nil
}

// environment has the facts that cloud-init guests get as templates, for scripts of other guests to source.
func (in *Input) environment() string {
	return fmt.Sprintf("KVM_HOSTNAME=%s\nKVM_IPV4=%s\nKVM_PROVIDER_ID=%s\n", in.Config.Name, in.Address, in.Config.ProviderID)
}

// boothook runs at every boot, before the modules of cloud-init that the user-data configure: disks have to be mounted before
// files are written onto them.
const boothook = `#cloud-boothook
#!/bin/sh
set -eu
dir=/run/capk/seed
mkdir -p "$dir"
if ! mountpoint -q "$dir"; then
	device=/dev/disk/by-label/CIDATA
	[ -e "$device" ] || device=$(blkid -L CIDATA)
	mount -t iso9660 -o ro "$device" "$dir"
fi
exec "$dir/vm-agent" setup "$dir"
`
