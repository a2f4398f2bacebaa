// Package launcher runs one virtual machine in a pod: it prepares disks, seed and network, starts QEMU, tells the controller through the
// pod's log what happens, and powers the guest off when the pod ends.
package launcher
