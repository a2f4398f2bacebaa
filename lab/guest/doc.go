// Package guest builds the image that the lab's virtual machines boot: Debian with systemd, containerd, kubelet and kubeadm, with every
// container image that kubeadm, the pod network and the tests want already in it.
//
//	<cache>/images/<name>/image.json     for the launcher, see contract.ImageManifest
//	<cache>/images/<name>/disk.qcow2     root disk; machines have overlays on it
//	<cache>/images/<name>/vmlinux        kernel, and initrd.img for it
//	<cache>/images/<name>/packages.txt   the exact version of each Debian package
//	<cache>/images/<name>/files.txt      each path of the root, with mode, owner, time and digest
//	<cache>/images/<name>/recipe.json    what it was made from, with its digest
//	<cache>/images/<alias>               links for the names in the cluster templates
//	<cache>/logs/image-<name>.log        output of the last build
//
// Invariants:
//   - a directory of an image is complete: it is filled under another name and renamed as the last step;
//   - an image whose recipe changed is built again; the recipe's digest covers packages, files, programs, versions and the toolchain;
//   - nothing outlives a build: every command has a mount and a process namespace of its own, which end with it, and one build at a time
//     is held by a lock that the kernel releases when the builder dies;
//   - two machines never share an identity: the image has no machine id, host key or host name.
//
// # Two builds
//
// Two builds of one recipe from the same packages are equal to the byte on one machine: `lab image verify` builds a second time and compares. What makes them so: files have the recipe's time, and
// programs that write the present time are given it (SOURCE_DATE_EPOCH), for passwords for example; the file system has the recipe's identifiers, and the recipe's time also where mkfs.ext4 copies what
// nobody can set; programs are compiled with -trimpath; archives are packed in order; Python's compiled files are made by one process with one seed; containerd's databases are written anew, in order
// and with the recipe's time. On another machine the disk may have the same files in other blocks, because mkfs.ext4 takes them in the order of that machine's directories: files.txt is equal there, too.
// Not the same are images of which Debian has published updates in between; packages.txt says which versions there are.
//
// # What a guest does at boot
//
// The launcher boots kernel and RAM disk directly. The RAM disk ([busybox], a handful of modules) mounts the root disk. When QEMU's
// firmware configuration holds an Ignition configuration, it applies it there, once, with Ignition's own files stage, before systemd
// runs. Otherwise systemd starts cloud-init, with NoCloud as the only data source. The container runtime and the kubelet wait for
// cloud-init's second stage, in which the launcher's agent mounts data disks. The kubelet is enabled and starts only with a
// configuration: kubeadm writes it and starts the kubelet, and after a reboot it starts by itself.
//
// # The pod network
//
// Nodes are NotReady until a pod network is installed, as in real life. [NetworkAddon] is one: flannel, compiled from its module, whose
// image is preloaded. Its CNI plugin is not in the Go module proxy, so a small program writes a configuration for the standard bridge
// plugin instead, once flannel knows the node's subnet.
//
// docs/guest-image.md says what images for production have to have.
//
// [busybox]: https://packages.debian.org/bookworm/busybox-static
package guest
