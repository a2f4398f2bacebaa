// Package network hands a pod's address to its guest. The pod's interface becomes a port of a bridge, the guest's tap the other one; the
// guest gets the interface's hardware address, so that neighbours and spoofing protection see what they saw before, and its IP
// address from a DHCP server with a single lease.
//
//	neighbours ── eth0 (new hardware address, no IP address) ── bridge ── tap ── guest (eth0's old addresses)
package network
