// Package supervisor keeps a cluster running for people: `lab up` detaches a
// supervisor process, `lab down` ends it, and the state directory is how they
// find each other.
//
//	<dir>/state.json        what runs, written by the supervisor only
//	<dir>/supervisor.log    its log
//	<dir>/mc/               the cluster's directory: kubeconfig, logs/, pki/
//
// The supervisor holds a lock on the directory for as long as it lives, and the
// kernel releases it with the process. So "is it running" is one question to
// the kernel, and a process id that was reused by a stranger is never signalled.
//
// When the supervisor ends, in order or by SIGKILL, the guard of the cluster
// ends all processes and removes the whole directory.
package supervisor
