// Package pki finds a cluster's certificate authority and proves that it is the right one.
//
// A Source says where the key pair is: two files, a Kubernetes Secret, or a path in Vault. Loading it gives an Authority; its
// methods answer single questions (does the key fit, may it sign, did it sign this certificate), and Verify asks them all.
//
// Private keys never leave this package by accident: a PrivateKey prints as "[redacted]" with every verb and encoder, and the key
// itself is behind a function value, so that reflection finds nothing either. The only ways out are PrivateKey.Signer and
// PrivateKey.PEM. Nothing here writes anywhere.
package pki
