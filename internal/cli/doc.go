// Package cli is the command line of migrate: one file per command, each of which turns flags into options, calls the packages that
// know, and renders the document it gets.
//
// Standard output carries the answer, standard error progress and logs. Nothing here decides about a migration. The exit codes are
// in exit.go, the flags every command has in globals.go, the order in which flags, environment and configuration file win in layers.go.
package cli
