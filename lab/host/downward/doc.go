// Package downward tells containers about their own pod: the fields and resources of the downward API.
package downward
