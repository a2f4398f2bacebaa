// Package qmp speaks QEMU's machine protocol over a connected socket: commands with answers, events in between. A client made with
// ReadOnly sends nothing but queries, for virtual machines that must not be touched.
package qmp
