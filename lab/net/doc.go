// Package labnet gives a lab with VM hosts a private network: a network
// namespace with a bridge for pods, a mount namespace with a resolver
// configuration, and ways in and out of them.
//
//	┌ private network and mount namespace ───────────────────────────────┐
//	│ 127.0.0.1      etcd, API server, controllers                       │
//	│ lab0 10.100.0.1/16   API server for pods, CoreDNS on port 53       │
//	│      10.100.0.2      ingress (SNI passthrough)                     │
//	│      10.100.0.10+i   host i, port 10250                            │
//	│      10.100.i.0/24   pods of host i, each in its own namespace     │
//	│ 10.96.0.0/16   Services (kube-proxy), cluster DNS 10.96.0.10       │
//	└──────────────────────────────▲─────────────────────────────────────┘
//	                               │ relay: a listener on the loopback of the
//	                               │ namespace the lab was started from
//
// Nothing of it has a name in the file system, so the kernel removes it with
// the last process inside, however that one ends. There is no way from the
// inside to the world outside, and only the relayed API server the other way.
//
// A test that wants to reach pods has to run inside. [Main] does that: it runs
// the test binary once more in namespaces of its own.
//
//	func TestMain(m *testing.M) {
//		os.Exit(labnet.Main(m.Run))
//	}
//
// Package mctest does it by itself for a cluster with hosts:
//
//	var cluster *mc.Cluster
//
//	func TestMain(m *testing.M) {
//		os.Exit(mctest.Main(m, mc.Options{Parts: mc.Everything, Hosts: 2}, func(c *mc.Cluster) { cluster = c }))
//	}
package labnet
