// Package provision makes local persistent volumes for claims of the StorageClass lab-local, on the host that the scheduler chose, and
// removes them when their claims are gone.
package provision
