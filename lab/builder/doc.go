// Package builder compiles the real components of the lab from their Go
// modules and keeps the results in a cache outside the repository.
//
// Nothing is downloaded but Go modules: etcd, the Kubernetes control plane and
// the Cluster API controllers are all compiled by the Go toolchain that runs
// the lab. One compilation takes minutes, so results are kept by version:
//
//	<cache>/bin/<component>-<version>-<os>-<arch>-<recipe>/<component>
//	<cache>/share/cluster-api-<version>/{core,bootstrap-kubeadm,control-plane-kubeadm}/
//	<cache>/logs/<component>.log
//
// The recipe is a digest of everything that decides the result besides the
// version (packages, linker flags, patches, toolchain), so that a changed recipe
// never finds an old binary.
//
// Invariants:
//   - a directory below bin/ or share/ is complete: it is filled under another
//     name and renamed as the last step;
//   - one build at a time per cache, held by a file lock that the kernel
//     releases when the builder dies.
//
// Versions live in versions.go and nowhere else.
package builder
