// Package kvmmachine reconciles KVMMachines: one virtual machine, in one pod, once.
//
// Invariants:
//   - at most one pod is ever made for a KVMMachine, because its disks live and die with the pod: the pod's name is the machine's, its
//     UID is recorded, and a machine whose recorded pod is gone is reported, never made again;
//   - a pod that is not this machine's is never touched, whatever it is called;
//   - an adopted machine's pod is written to only while it is being deleted, and only if the deletion policy says so;
//   - a machine that is as it should be causes no write.
package kvmmachine
