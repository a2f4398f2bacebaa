// Package manifest reads Kubernetes objects from YAML files and puts them on
// an API server.
//
// It does the little of kustomize that Cluster API's own manifests need: name
// prefix, namespace, labels and merge patches. Everything it knows about a
// provider it reads from that provider's kustomization files.
package manifest
