// Package finalize removes what is left of the legacy platform around a cluster whose machines are all Cluster API's own, and puts the provider's own way
// to its API and workers in place of the legacy one. It knows how each of these is done and verified; in which order is internal/migrate's business.
package finalize
