// Package network is the network of a legacy cluster's virtual machines on the hosts of a lab: on each host a bridge with a /30, of which
// the machine has the second address.
//
// The real thing is flannel with a VXLAN per cluster. Here, hosts route: everything from a machine goes to the lab's router, which knows
// behind which host each /30 is. So all traffic of a machine passes the router in both directions, as connection tracking needs it.
package network
