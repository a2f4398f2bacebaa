// Package seed loads exported objects of legacy clusters into a running API
// server, so that it looks like the management cluster they came from.
//
// An export cannot simply be created again: the server gives every object a
// new uid, and owner references to the old ones make the garbage collector
// delete what they stand on; status is written through a subresource; and a
// controller manager next to the API server starts to act on half-loaded sets.
// [Load] takes care of all three.
//
// Two ways to load workloads:
//
//   - Without a controller manager, owners come first (Deployment, ReplicaSet,
//     Pod) and owner references are rewritten to the new uids.
//   - With one, a ReplicaSet without its pods would get new pods at once, and a
//     pod without its ReplicaSet must not name an owner. So it goes the other way
//     round: pods without owner, then ReplicaSets, which adopt them by label, then
//     Deployments, which adopt the ReplicaSets. Between the steps it waits until
//     the controller manager has provably seen the step before.
//
// Loading again is harmless: what exists is left as it is.
package seed
