// Package cli is the program lab-legacy: all containers of a legacy cluster in the lab's images, and the operators.
package cli
