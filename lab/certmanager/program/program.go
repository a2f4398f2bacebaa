// Package program holds the main programs of cert-manager, as text for the builder: upstream's are modules of their own that the
// module proxy does not serve, so the few lines that put upstream's packages together are written here.
package program

import _ "embed" // The programs are compiled elsewhere.

// The programs. Each is a complete main.go.
var (
	//go:embed controller/main.go
	Controller string
	//go:embed webhook/main.go
	Webhook string
	//go:embed cainjector/main.go
	CAInjector string
)
