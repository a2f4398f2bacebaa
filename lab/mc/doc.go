// Package mc runs a management cluster on loopback: the real etcd,
// kube-apiserver, kube-controller-manager, kube-scheduler and Cluster API
// controllers, with a certificate authority made for the occasion.
//
//	cluster, err := mc.Start(ctx, mc.Options{Parts: mc.ControllerManager | mc.ClusterAPI})
//	...
//	defer cluster.Stop(ctx)
//	c, err := client.New(cluster.Config(), client.Options{})
//
// The zero Options give etcd and an API server alone, which also serves as a
// cheap stand-in for a workload cluster: start a second one.
//
// With Hosts it also runs pods: VM hosts, kube-proxy, CoreDNS and an ingress, in
// a private network (package labnet). docs/lab.md has the addresses.
//
// Invariants:
//   - everything listens on 127.0.0.1, on ports chosen at start; in a private
//     network, also on its bridge;
//   - no process outlives the one that called Start, however that one ends, and
//     the cluster's directory goes with them (see package guard);
//   - Start returns when everything asked for has proved to work, or with an
//     error that carries the end of the failing component's log.
//
// What differs from a real management cluster, and why:
//   - etcd does not fsync: its data is thrown away with the cluster;
//   - no leader election: there is one of each, and waiting for leases is slow;
//   - without hosts, the components collect garbage a quarter as often: their
//     heaps are small, and tests are bound by the processor;
//   - without hosts, no node lifecycle controller and no TaintNodesByCondition admission: the
//     seeded hosts have no kubelet, so they would be marked NotReady and their
//     VM pods evicted; and nobody would ever take the first taint off a node;
//   - without hosts, no reconciliation of the endpoints of the Service default/kubernetes: a
//     loopback address is not a valid endpoint.
package mc
