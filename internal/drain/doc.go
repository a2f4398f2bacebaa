// Package drain empties a node the way Cluster API does, and says which pods leave, in what way, and what keeps the others there.
package drain
