// Package vmtest is what tests of virtual machines share: golden files, private network namespaces, pods made of veth pairs, a small
// guest of a Debian kernel and busybox.
package vmtest
