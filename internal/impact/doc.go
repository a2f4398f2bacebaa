// Package impact measures what users of a cluster could notice while something is done to it: answers of its API and of workloads, and pods that
// were moved or missing.
package impact
