// Package cli is the lab command: one file per subcommand, flags in, text or
// JSON out. It decides nothing a test would want without a terminal.
package cli
