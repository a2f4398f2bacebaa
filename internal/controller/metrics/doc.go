// Package metrics keeps timestamps of every reconciled object, under the names that alerts of the platform know.
package metrics
