// Package observe turns the events of a running migration into Prometheus metrics.
package observe
