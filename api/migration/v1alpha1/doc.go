// Package v1alpha1 holds the API group of the migration: the documents that migrate writes all carry its version.
package v1alpha1
