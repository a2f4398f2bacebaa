// Package health keeps what is known of a virtual machine, from QEMU and from the agent's beats, and judges by it whether the machine is
// alive and ready. Probes ask over a unix socket, because the launcher has no network of its own.
package health
