// Package contract is what the provider's controller, the launcher in a virtual machine's pod and the agent in its guest agree on:
// configuration, paths, reports, exit codes. It has no behaviour beyond reading and writing these.
//
//	controller ──Config (environment of the pod)──▶ launcher ──GuestConfig (disk)──▶ agent
//	controller ◀──Report (lines of the pod's log)── launcher ◀──Beat (virtio-serial)── agent
//
// Nothing goes over the network: the guest owns the pod's address, so the launcher has none, and the controller reads what the
// launcher says from the pod's log, which the kubelet serves.
package contract
