// Package qemu knows how to call QEMU: the arguments for a machine as a pure function, the trial that decides whether KVM works on
// this host, and the process itself.
package qemu
