// Package exit carries the exit code of contract along with the error that causes it, from where something fails to main.
package exit
