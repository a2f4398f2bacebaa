// Package etcdtest runs real etcd servers with TLS for a test: one as legacy masters have, or several.
package etcdtest
