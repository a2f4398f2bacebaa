// Package vmpod turns a KVMMachine into the objects that make it run: pod, claim, disruption budget and the launcher's configuration.
//
// It is pure: no client, no clock. The same input gives the same objects, so that they can be compared with golden files.
package vmpod
