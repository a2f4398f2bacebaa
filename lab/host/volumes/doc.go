// Package volumes puts a pod's volumes on the host.
//
// Whatever comes out of the API (secrets, configuration, tokens) lives in memory, in a tmpfs that no other process of the machine sees,
// and is brought up to date while the pod runs. Host paths are below the host's own directory, so that hosts on one machine are distinct.
package volumes
