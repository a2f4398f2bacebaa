// Package e2e walks clusters of real virtual machines through what users do to them: a new one with clusterctl and kubectl, and a legacy one
// that migrate takes over and gives back.
//
// Nothing in it reaches into the product; it runs the programs and reads their documents. It needs root, QEMU and, without hardware
// virtualization, an hour per walk. So its tests carry the build tag e2e and run by `make e2e-provider` and `make e2e-adopt`.
package e2e
