package failure

import (
	"strings"
	"sync"

	"github.com/hashicorp/go-multierror"
)

// Join returns one error for several: nil when there are none, the error itself when there is one. Errors that were joined before are taken
// apart first. errors.Is and errors.As find each of them.
func Join(errs ...error) error {
	var all *multierror.Error
	for _, err := range errs {
		for _, one := range All(err) {
			all = multierror.Append(all, one)
		}
	}
	switch {
	case all == nil:
		return nil
	case len(all.Errors) == 1:
		return all.Errors[0]
	}
	all.ErrorFormat = oneLine
	return all
}

// All takes errors apart that Join put together; nil has none.
func All(err error) []error {
	// Only what was joined directly: a joined error that somebody wrapped means something as a whole.
	var all *multierror.Error
	if joined, ok := err.(*multierror.Error); ok { //nolint:errorlint // See above.
		all = joined
	}
	switch {
	case err == nil:
		return nil
	case all != nil:
		return all.Errors
	default:
		return []error{err}
	}
}

// oneLine is how joined errors read: in logs, conditions and events a list over several lines falls apart.
func oneLine(errs []error) string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// List collects failures of work that is done side by side. The zero value is empty.
type List struct {
	mu   sync.Mutex
	errs []error
}

// Add notes a failure; nil is none.
func (l *List) Add(err error) {
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
}

// Err is all of them, see Join.
func (l *List) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Join(l.errs...)
}
