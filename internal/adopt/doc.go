// Package adopt takes a running legacy cluster into Cluster API's care without restarting anything, and gives it back: it silences the
// legacy operators, makes and unpauses the objects, and takes the pods out of their Deployments' hands. It knows how each of these is
// done, verified and taken back; in which order is internal/migrate's business.
package adopt
