// Package pki makes the lab's certificates.
//
// Every cluster gets a certificate authority of its own, made at start and
// thrown away with the cluster. Keys are ECDSA P-256: making one takes well
// under a millisecond, where RSA would cost seconds for a whole cluster.
// An existing authority can be loaded instead, so that an API server can stand
// in for a cluster whose clients already trust that authority.
package pki
