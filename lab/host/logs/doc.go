// Package logs keeps the output of containers in files and reads it back like a kubelet: by tail, time and size, following or not.
//
// A line in a file is "TIME STREAM FLAG TEXT", as container runtimes write it; FLAG is F, or P for a piece of a longer line.
package logs
