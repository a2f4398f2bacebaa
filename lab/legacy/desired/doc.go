// Package desired says which objects kvm-operator 3.18 wants for a cluster: it is a pure function of the KVMConfig, the Release and the
// settings of the installation, and is compared in tests with what the real operator wrote.
package desired
