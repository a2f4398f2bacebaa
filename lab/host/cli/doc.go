// Package cli is lab-host's command line.
package cli
