// Package cluster makes a legacy cluster that can live in a lab: the recorded objects of a real one with other certificates, names of the
// lab's own zone, and sizes that a small machine can bear.
//
// What kvm-operator makes (Deployments, Services, Ingresses, claims, bindings) is left to the operator that runs beside it, or added by
// [Cluster.Wanted] where none runs. Bootstrap data is always included: it is rendered from the recorded one.
package cluster
