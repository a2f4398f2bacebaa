// Package proof shows that VMs, kubelets and etcd members were not touched: it records what only a restart changes, before and after,
// and compares the two.
//
// Collecting sends nothing but reads. What could not be read is never taken for unchanged: the proof is incomplete then.
package proof
