// Package agent is a host of the lab: a Node whose pods run as processes of this machine.
package agent
