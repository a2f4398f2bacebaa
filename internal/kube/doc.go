// Package kube makes clients of API servers that can only look: a reader without a cache, and an applier whose every request is a
// server-side dry run.
//
// What planning and checking get from here has no method that writes (design decision 10), and the transport underneath refuses
// whatever else might be sent.
package kube
