// Package reaper is the first process of a container: it starts the program proper once more, passes signals on and collects processes
// that lost their parent.
package reaper
