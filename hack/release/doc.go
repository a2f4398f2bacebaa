// Command release writes the files of a release of the provider, as clusterctl expects them in a repository:
//
//	go run ./hack/release -version v0.1.0 -out out
//
// The same tree and version give the same bytes. What clusterctl would refuse is refused here, with every reason at once.
package main
