// Package migrate moves one cluster through the phases of its migration, forward or back: it is the only place that knows the order of the
// steps, and it keeps the journal, the lock and the event log that let somebody else's machine go on after a crash.
package migrate
