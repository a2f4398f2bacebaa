// Package finding defines what the program says about a problem: one value that every reader, check, plan and report shares.
package finding
