// Package network gives pods addresses and network namespaces on a bridge.
//
// A namespace is held by an open file and by the processes in it, by no mount: when the host agent and the containers are gone, the
// kernel takes namespace and cable away by itself.
package network
