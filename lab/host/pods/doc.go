// Package pods runs the pods that are bound to a host, as a kubelet does.
//
// Each pod has a worker, one goroutine that owns all its state: it looks at what the API wants and what happened to processes, probes and
// deadlines, does the next thing and publishes the status. Whatever takes time (hooks, probes, waiting for a process) runs beside it and
// reports back through the worker's mailbox.
//
//	informer ──pod──▶ worker ──▶ network, volumes, containers
//	probes, exits ──mail──▶ worker ──status patch──▶ API server
//
// The status is patched by strategic merge against the newest pod seen, so that conditions of others stay: readiness gates are theirs.
package pods
