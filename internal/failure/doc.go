// Package failure puts independent failures together, so that none of them hides the others.
package failure
