// Package guard starts processes that cannot outlive their starter, however it
// ends.
//
// A test binary that is killed with SIGKILL cannot clean up, and the kernel's
// parent-death signal alone is not enough: it is bound to the *thread* that
// forked, and Go ends threads when it likes. So the children belong to a helper,
// lab-guard, a program of its own (a test binary cannot re-execute itself as
// something else without help from every TestMain):
//
//		starter ──pipe──▶ lab-guard ──PR_SET_PDEATHSIG──▶ etcd, kube-apiserver, …
//
//	  - The starter dies: the kernel closes its end of the pipe, the guard reads
//	    end-of-file, ends the children, removes the directories it was told to
//	    remove and leaves.
//	  - The guard dies: its children get SIGKILL from the kernel. The guard forks
//	    only from its locked main thread, which lives as long as the process.
//	  - Both die in the same moment: the second rule still holds.
//
// An orderly end takes the same path: [Guard.Close] closes the pipe.
//
// The helper's source is embedded as [Program], so that it can be built
// wherever the package is used; it needs nothing but the standard library.
package guard
