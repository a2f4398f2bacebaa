// Package clusterctl runs the real clusterctl without a network: it writes a local repository with this provider, Cluster API and
// cert-manager, the configuration that leads there, and calls the program.
package clusterctl
