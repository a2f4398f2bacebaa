// Command repository publishes the working tree for clusterctl on this machine, beside Cluster API and cert-manager, and prints what
// a shell has to know to use it:
//
//	eval "$(go run ./clusterctl/repository -out ~/clusterctl)"
//
// It runs in the directory lab/.
package main
