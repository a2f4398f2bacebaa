// Package etcd talks to the members of an etcd cluster: who they are, how they are, what they measure. It knows no Kubernetes objects.
package etcd
