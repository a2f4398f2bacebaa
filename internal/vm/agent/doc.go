// Package agent is what runs inside a guest: it sets up what the machine's configuration asks of the operating system, and tells the launcher how the guest is.
package agent
