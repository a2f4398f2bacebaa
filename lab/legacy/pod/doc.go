// Package pod holds the programs that a lab's hosts run for the images of a legacy virtual machine's pod and of the network's DaemonSet.
//
//	/opt/k8s-endpoint-updater   writes the machine's address into the pod's annotation, once
//	/docker-entrypoint.sh       starts the machine (image k8s-kvm)
//	/etc/qemu-ifup              connects the machine's interface; QEMU calls it
//	/qemu-shutdown              waits for the drain, then asks the machine to power off
//	k8s-kvm-health              answers whether the machine can be reached
//	shutdown-deferrer           answers whether the drain is still going on
//	/pre-shutdown-hook          waits until it says no
//	flanneld, k8s-network-bridge, flannel-network-health: the host's part of the network
//
// All are one binary, which looks at the name it was called by. What differs from the real ones: the accelerator is software, the root
// disk is a fresh overlay of the lab's image instead of an empty disk beside a RAM disk with Flatcar, and disks are thin.
package pod
