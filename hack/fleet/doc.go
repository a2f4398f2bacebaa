// Command fleet makes many believable legacy clusters out of the two recorded ones, for tests and benchmarks of size.
//
//	go run ./hack/fleet -n 500 -o DIR
//	go run ./hack/fleet -n 1 -workers 14 -o DIR
//	go run ./hack/fleet -n 1 -first 6 -fresh-ca -workers 3 -o DIR
//
// Each cluster is a recording with everything renamed consistently: ids, organisation, domains, network ids and addresses,
// node ids, pod names and hashes, uids and container ids, also inside base64, gzip, Ignition, kubeconfigs and certificates.
// Certificates are signed again with the recordings' keys, since making thousands of RSA keys would take hours; so all
// clusters of a fleet share keys. Service account tokens get new contents and keep their old signature, which no longer fits.
// The same flags give the same fleet, byte by byte with the same Go release. The exception is -fresh-ca, for clusters that get a
// running API server: a CA key of its own for each recording, and validity from now on.
//
// A recording is compiled once into templates. Rendering a cluster then only joins strings, so memory does not grow with
// the fleet, apart from one bookkeeping entry per cluster.
//
// DIR holds one directory per cluster and management-cluster/. Every file is a List with one item per line. Below a cluster's
// directory, workload-cluster/ is the view from inside (Nodes only) and ca/ the certificate authority with its key.
// Every twentieth cluster has a defect: no encryption key, a worker that is not ready, or two masters.
package main
