package pods

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// hostname of the pod's containers; empty in the host's network.
func (w *worker) hostname() string {
	switch {
	case w.pod.Spec.HostNetwork:
		return w.opts.Node
	case w.pod.Spec.Hostname != "":
		return w.pod.Spec.Hostname
	default:
		return strings.TrimRight(w.name[:min(len(w.name), 63)], "-.")
	}
}

// writeEtc makes the files in /etc that are the pod's.
func (w *worker) writeEtc() error {
	resolv, err := w.resolvConf()
	if err != nil {
		return err
	}
	dir := filepath.Join(w.dir, "etc")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the pod's directory: %w", err)
	}
	for name, text := range map[string]string{"hosts": w.hosts(), "hostname": w.hostname() + "\n", "resolv.conf": resolv} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // As on any system.
			return fmt.Errorf("writing the pod's %s: %w", name, err)
		}
	}
	return nil
}

func (w *worker) hosts() string {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	names := w.hostname()
	if w.pod.Spec.Subdomain != "" {
		names = fmt.Sprintf("%s.%s.%s.svc.%s\t%s", names, w.pod.Spec.Subdomain, w.namespace, w.opts.Domain, names)
	}
	fmt.Fprintf(&b, "%s\t%s\n", w.address, names)
	for _, a := range w.pod.Spec.HostAliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.String()
}

// resolver is the content of a resolv.conf.
type resolver struct{ servers, searches, options []string }

func (w *worker) resolvConf() (string, error) {
	policy := w.pod.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && w.pod.Spec.HostNetwork {
		policy = corev1.DNSDefault
	}
	var r resolver
	switch policy {
	case corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet:
		r = resolver{
			servers:  []string{w.opts.DNS},
			searches: []string{w.namespace + ".svc." + w.opts.Domain, "svc." + w.opts.Domain, w.opts.Domain},
			options:  []string{"ndots:5"},
		}
	case corev1.DNSDefault:
		raw, err := os.ReadFile("/etc/resolv.conf")
		if err != nil && !os.IsNotExist(err) {
			return "", fmt.Errorf("reading the machine's resolv.conf: %w", err)
		}
		r = parseResolver(string(raw))
	case corev1.DNSNone:
	}
	if c := w.pod.Spec.DNSConfig; c != nil {
		r.add(c)
	}
	return r.String(), nil
}

func parseResolver(text string) resolver {
	var r resolver
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			r.servers = append(r.servers, fields[1])
		case "search":
			r.searches = fields[1:]
		case "options":
			r.options = append(r.options, fields[1:]...)
		}
	}
	return r
}

// add merges a pod's own settings: its options replace those of the same name.
func (r *resolver) add(c *corev1.PodDNSConfig) {
	for _, s := range c.Nameservers {
		if !slices.Contains(r.servers, s) {
			r.servers = append(r.servers, s)
		}
	}
	for _, s := range c.Searches {
		if !slices.Contains(r.searches, s) {
			r.searches = append(r.searches, s)
		}
	}
	for _, o := range c.Options {
		r.options = slices.DeleteFunc(r.options, func(old string) bool {
			name, _, _ := strings.Cut(old, ":")
			return name == o.Name
		})
		text := o.Name
		if v := ptr.Deref(o.Value, ""); v != "" {
			text += ":" + v
		}
		r.options = append(r.options, text)
	}
}

// String is the file's content.
func (r *resolver) String() string {
	var b strings.Builder
	for _, s := range r.servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(r.searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(r.searches, " "))
	}
	if len(r.options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(r.options, " "))
	}
	return b.String()
}
