package exit

import (
	"errors"
	"fmt"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// Error is an error with the exit code it leads to.
type Error struct {
	// Code is one of the Exit constants of contract.
	Code int
	Err  error
}

// Error is the text of the error inside.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the error inside.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an error that leads to an exit code.
func Errorf(code int, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Code is the exit code of an error: the outermost one that was given, contract.ExitInternal where none was, and 0 without an error.
func Code(err error) int {
	if err == nil {
		return 0
	}
	var coded *Error
	if errors.As(err, &coded) {
		return coded.Code
	}
	return contract.ExitInternal
}
