// Package pack makes documents small enough for an object of the API server, which takes a MiB.
package pack
