// Package images knows which program stands in for a container image.
package images
