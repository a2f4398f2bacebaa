package userdata

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
)

// FirmwareName is the name under which QEMU offers the document to the machine.
const FirmwareName = "opt/org.flatcar-linux/config"

// Machine is what the entrypoint of a machine's container knows besides the bootstrap data.
type Machine struct {
	// Hostname is the pod's name, and will be the Node's.
	Hostname string
	// Bridge is the address of the host's end, with its prefix: the machine has the next one.
	Bridge netip.Prefix
	// DNS and NTP servers.
	DNS, NTP []string
}

// Wrap returns the document that a machine gets: it appends the bootstrap data and adds the host name and the network of the only
// interface.
func Wrap(userData string, m Machine) ([]byte, error) {
	document, err := Decode(userData)
	if err != nil {
		return nil, err
	}
	var network strings.Builder
	fmt.Fprintf(&network, "[Match]\nName=eth0\n\n[Network]\nAddress=%s\nGateway=%s\n",
		netip.PrefixFrom(m.Bridge.Addr().Next(), m.Bridge.Bits()), m.Bridge.Addr())
	for _, s := range m.DNS {
		fmt.Fprintf(&network, "DNS=%s\n", s)
	}
	for _, s := range m.NTP {
		fmt.Fprintf(&network, "NTP=%s\n", s)
	}
	wrapped, err := json.Marshal(map[string]any{
		"ignition": map[string]any{
			"version": "2.2.0",
			"config":  map[string]any{"append": []any{map[string]any{"source": dataURL(document)}}},
		},
		"networkd": map[string]any{"units": []any{map[string]any{"name": "00-eth0.network", "contents": network.String()}}},
		"storage": map[string]any{"files": []any{map[string]any{
			"filesystem": "root", "path": "/etc/hostname", "mode": 0o644,
			"contents": map[string]any{"source": dataURL([]byte(m.Hostname))},
		}}},
	})
	if err != nil {
		return nil, fmt.Errorf("writing the document of %s: %w", m.Hostname, err)
	}
	return wrapped, nil
}
