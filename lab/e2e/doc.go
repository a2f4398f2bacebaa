// Package e2e proves the provider on real virtual machines, the way a user meets it: `lab up`, clusterctl, kubectl.
//
// Nothing in it reaches into the product. It needs root, QEMU and about half an hour, so its tests carry the build tag e2e and run
// by `make e2e-provider`.
package e2e
