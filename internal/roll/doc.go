// Package roll replaces the machines of an adopted cluster: it brings a new control plane beside the legacy one, compares the two, lets the legacy one
// leave, and then replaces one worker after the other. It knows how each of these is done, verified and, as long as that is possible, taken back; in which
// order is internal/migrate's business.
package roll
