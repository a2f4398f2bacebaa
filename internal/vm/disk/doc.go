// Package disk makes a machine's disks and looks after those it finds: the root disk as an overlay on the base image, data disks as
// sparse files. A disk appears complete or not at all, is only ever grown, and is never thrown away.
package disk
