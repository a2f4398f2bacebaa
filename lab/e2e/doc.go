// Package e2e walks clusters of real virtual machines through what users do to them: a new one with clusterctl and kubectl, a legacy one
// that migrate adopts and gives back, and a legacy one that migrate takes through all phases.
//
// Nothing in it reaches into the product; it runs the programs and reads their documents. It needs root, QEMU and, without hardware
// virtualization, an hour per walk. So its tests carry the build tag e2e and run by `make e2e-provider`, `make e2e-adopt` and `make e2e`.
package e2e
