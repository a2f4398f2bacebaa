// Package image finds base images by name: a directory with a manifest, or a single file.
package image
