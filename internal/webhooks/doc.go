// Package webhooks refuses objects that could never work, and evictions of virtual machines whose guests are not drained.
//
// A message names the field, the value and what is allowed instead. What a schema can say is in the CRDs; here is what needs other
// objects, Go's parsers or a comparison that can be explained.
package webhooks
