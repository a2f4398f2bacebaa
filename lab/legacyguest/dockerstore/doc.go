// Package dockerstore puts container images into the data directory of a Docker daemon that does not run: the daemon finds them when it
// starts, as if it had pulled them.
//
// Only the overlay2 driver's layout is known, as Docker 20.10 reads it. What `docker save` and `docker push` need is left out.
package dockerstore
