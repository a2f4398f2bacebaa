// Package kvmcluster reconciles KVMClusters: how the API of a workload cluster is reached, and where its machines may run.
//
// It owns a Service without a selector, its EndpointSlices, an Ingress and a Service of the workers, and lists in them the machines
// that may have traffic. It also keeps listed Endpoints of other namespaces current. Nothing is written that is already as it should be.
package kvmcluster
