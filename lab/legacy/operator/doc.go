// Package operator stands in for the operators of a legacy management cluster: kvm-operator, cluster-operator, cert-operator,
// flannel-operator and node-operator.
//
// What matters to somebody who takes a cluster over is what these programs do to objects they think are theirs, and what stops them. So the
// rules are those of the real ones: which label or version selects an instance, which of them honours a pause, which finalizers they
// leave, what is created again after a deletion, and what is deleted because nobody wants it. Nothing here knows of a takeover.
//
// Unlike the real ones they look at everything again and again instead of watching, they write no bootstrap data (a ConfigMap that is
// gone stays gone, and a VM that needs it does not start), and cert-operator signs with an authority on disk instead of a Vault. Delays
// that only cost time are divided by one factor.
package operator
