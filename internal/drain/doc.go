// Package drain says which pods leave a node and in what way, and what would keep them there. It reads and changes nothing itself.
package drain
