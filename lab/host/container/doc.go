// Package container runs a container as a process with namespaces and a root file system of its own, without an image or a
// container engine: the root is made of the machine's system directories and of what is mounted into it.
//
//	Runtime (one thread with a private mount namespace) ──fork──▶ shim (the same program) ──exec──▶ the container's program
//
// Nothing outlives the Runtime's process, however it ends: the container is the first process of a PID namespace and gets SIGKILL
// when the Runtime's thread ends, its mounts are in its own mount namespace, and what the pod's containers share is mounted in the
// Runtime's.
package container
