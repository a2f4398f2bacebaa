// Package nameserver asks one name server for the addresses of one name, as a machine does that has no other: without the hosts file, search domains and name servers of the machine it runs on.
package nameserver
