// Package reaper kills a program at one of its writes to an API server, so that a test sees what the next program makes of what it left.
package reaper
