// Package artifacts makes the files that a release of the provider consists of, and says what clusterctl would not accept about them.
//
// Everything is read from a working tree: config/default by kustomize, templates/ and metadata.yaml as they are.
package artifacts
