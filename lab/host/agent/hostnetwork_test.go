package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/agent"
)

// newHostWithNetwork starts a host that has a network of its own, with an address on the bridge.
func newHostWithNetwork(t *testing.T, address string) *host {
	t.Helper()
	return newHost(t, func(o *agent.Options) {
		o.HostNetwork, o.Address, o.Listen = true, netip.MustParseAddr(address), address+":10250"
	})
}

// bridgePod makes a bridge of a name that is the same on every host, and serves on a port that is, too.
func (h *host) bridgePod(name string) {
	h.t.Helper()
	const script = `ip link add br-same type bridge && ip addr add 172.23.0.1/30 dev br-same && ip link set br-same up && ` +
		`cat /proc/sys/net/ipv4/ip_forward && ip -o -4 addr show && mkdir -p /www && echo ok > /www/healthz && ` +
		`exec busybox httpd -f -p 127.0.0.1:23011 -h /www`
	h.create(h.pod(name, script, func(p *corev1.Pod) {
		p.Spec.HostNetwork = true
		c := &p.Spec.Containers[0]
		c.SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
		c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Host: "127.0.0.1", Path: "/healthz", Port: intstr.FromInt32(23011)},
		}}
	}))
}

func TestHostsHaveNetworksOfTheirOwn(t *testing.T) {
	t.Parallel()
	const first, second = "10.100.250.1", "10.100.250.2"
	for i, h := range []*host{newHostWithNetwork(t, first), newHostWithNetwork(t, second)} {
		address := []string{first, second}[i]
		h.bridgePod("bridge")
		// The probe is asked in the host's network: nobody listens on loopback elsewhere.
		p := h.wait("bridge", "its probe succeeds", isReady)
		assert.Equal(t, address, p.Status.PodIP)
		assert.Equal(t, address, p.Status.HostIP)
		// Logs and exec are served at the host's address.
		log := h.logs("bridge", corev1.PodLogOptions{})
		assert.Contains(t, log, address+"/16")
		assert.Contains(t, log, "172.23.0.1/30")
		assert.Equal(t, "1\n", log[:2], "the host forwards")
	}
}

func TestHostNetworkComesBackWithItsHost(t *testing.T) {
	t.Parallel()
	h := newHostWithNetwork(t, "10.100.250.3")
	h.bridgePod("bridge")
	h.wait("bridge", "its probe succeeds", isReady)
	h.stop()
	h.start()
	p := h.wait("bridge", "it runs again, in a new network", func(p *corev1.Pod) bool {
		return isReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	require.Equal(t, "10.100.250.3", p.Status.PodIP)
}

func TestPodsReachTheHostAndTheOtherWayRound(t *testing.T) {
	t.Parallel()
	const address = "10.100.250.4"
	h := newHostWithNetwork(t, address)
	h.create(h.pod("server", "mkdir /www && echo pod > /www/index.html && exec busybox httpd -f -p 8080 -h /www"))
	server := h.wait("server", "it runs", isReady)
	h.create(h.pod("on-host", "mkdir /www && echo host > /www/index.html && until busybox wget -q -O - http://"+server.Status.PodIP+
		":8080/; do sleep 0.1; done; exec busybox httpd -f -p 8080 -h /www", func(p *corev1.Pod) { p.Spec.HostNetwork = true }))
	h.waitLog("on-host", "pod")
	h.create(h.pod("client", "until busybox wget -q -O - http://"+address+":8080/; do sleep 0.1; done; exec sleep 600"))
	h.waitLog("client", "host")
}
