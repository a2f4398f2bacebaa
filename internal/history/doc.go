// Package history holds the documents that tell what a run did: events, one per line of a log, and the report of a run.
package history
