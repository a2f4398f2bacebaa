// Package roll replaces the nodes of an adopted cluster. So far it brings a new control plane beside the legacy one: a KubeadmControlPlane
// with one machine, whose etcd joins the running one, and whose API server is compared with the old before it serves; and it takes all of that
// away again. It knows how each of these is done, verified and taken back; in which order is internal/migrate's business.
package roll
