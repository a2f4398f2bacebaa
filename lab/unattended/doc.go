// Package unattended tries the examples of docs/unattended as whoever copies them would.
package unattended
