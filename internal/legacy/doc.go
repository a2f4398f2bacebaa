// Package legacy reads one legacy cluster, from a live management cluster or from a snapshot, into one typed picture.
//
// It only looks: the package receives a client.Reader and holds nothing that can write to a cluster. Only this package and
// internal/translate know the legacy Go types.
package legacy
