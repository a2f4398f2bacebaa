// Package hook tells programs and addresses what happens in a run. It decides nothing: what fails here is an event, and the run goes on.
package hook
