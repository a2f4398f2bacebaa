package cli

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Modes of --color.
const (
	colorAuto   = "auto"
	colorAlways = "always"
	colorNever  = "never"
)

// widestLine is where a wide terminal stops helping to read.
const widestLine = 140

// terminalWidth returns the columns of a terminal; ok is false for everything else.
func terminalWidth(w io.Writer) (columns int, ok bool) {
	if shared, wrapped := w.(*serial); wrapped {
		w = shared.w
	}
	file, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return 0, false
	}
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0, true
	}
	return columns, true
}

// useColor decides about colours. The flag wins, then NO_COLOR, then CLICOLOR_FORCE; a pipeline counts as no terminal.
func useColor(mode string, env map[string]string, terminal bool) bool {
	switch {
	case mode == colorAlways:
		return true
	case mode == colorNever, env["NO_COLOR"] != "":
		return false
	case env["CLICOLOR_FORCE"] != "" && env["CLICOLOR_FORCE"] != "0":
		return true
	default:
		return isInteractive(env, terminal) && env["TERM"] != "dumb"
	}
}

// isInteractive tells whether a person watches: a terminal, and not one that a pipeline pretends to have.
func isInteractive(env map[string]string, terminal bool) bool {
	return terminal && (env["CI"] == "" || env["CI"] == "false" || env["CI"] == "0")
}

// lineWidth is the width of text: what was asked for, else the terminal's within reason, else the renderer's own (0).
func lineWidth(flag, columns int) int {
	switch {
	case flag > 0:
		return flag
	case columns > 0:
		return min(columns, widestLine)
	default:
		return 0
	}
}

// PrepareProcess sets what exists only once per process: a closed pipe becomes an error of the write instead of the end of the program
// (`migrate … | head` must not keep files from being written), and help keeps our order of commands. The program's main calls it.
func PrepareProcess() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	cobra.EnableCommandSorting = false //nolint:reassign // the library offers no other way
}
