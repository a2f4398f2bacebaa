package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

// Code is an exit code of migrate. They are part of its interface: the meaning of a number never changes.
type Code int

const (
	// CodeOK means done, or nothing to do.
	CodeOK Code = 0
	// CodeError is everything unexpected.
	CodeError Code = 1
	// CodeChanges means that a plan has changes, or a forecast actions; only with --detailed-exitcode.
	CodeChanges Code = 2
	// CodeBlocked means that a check or a gate says no.
	CodeBlocked Code = 3
	// CodeWaiting means that work remains and the window is closed.
	CodeWaiting Code = 4
	// CodeStale means that the world changed since a plan was made.
	CodeStale Code = 5
	// CodeStopped means that a run stopped and can be resumed.
	CodeStopped Code = 6
	// CodeDecision means that a human has to decide. 7, which was for runs that take themselves back, is not used: only people take a migration back.
	CodeDecision Code = 8
	// CodeUsage means that the command line is wrong.
	CodeUsage Code = 64
	// CodeInterrupted means that somebody pressed Ctrl-C.
	CodeInterrupted Code = 130
)

// CodeDoc explains an exit code.
type CodeDoc struct {
	Code    Code
	Name    string
	Meaning string
	// When says which commands use it, and how.
	When string
}

// Codes lists every exit code, for docs/exit-codes.md and the tests.
func Codes() []CodeDoc {
	return []CodeDoc{
		{CodeOK, "ok", "done, or nothing to do", "`check`: every check passed or warned. `plan`: a plan was made, whatever it says, unless `--detailed-exitcode` is given; with it: nothing to change."},
		{CodeError, "error", "unexpected error", "Something could not be read, written or understood; standard error says what and what to do. `inventory`, and `snapshot` of a snapshot: what was written is what could be read. `check`: a check could not look, which is not a pass. `proof`: not everything could be read."},
		{CodeChanges, "changes", "the plan has changes", "`plan --detailed-exitcode`: the plan is applyable and changes something. `fleet plan --detailed-exitcode`: there is something to do. `forecast --detailed-exitcode`: Cluster API would do something, or could."},
		{CodeBlocked, "blocked", "a check or gate says no", "`check`, and `plan` and `fleet plan` with `--detailed-exitcode`. `proof`: something was restarted or replaced. `fleet run`: checks are in the way of all that is left, or somebody else works through the fleet. Commands that run a migration: a check, a gate or somebody else's run is in the way; `rollback`: the point of no return is passed. `playbook lint`, `fleet lint`: a doubt."},
		{CodeWaiting, "waiting", "the window is closed or the run is paused; work remains", "Commands that run a migration. `fleet run`: the next cluster may begin later, or waits for an approval."},
		{CodeStale, "stale", "the world changed since the plan was made", "`plan --against FILE --detailed-exitcode` and `run --plan FILE`: a value the earlier plan used is different now."},
		{CodeStopped, "stopped", "the run stopped and is safe to resume", "Commands that run a migration: a step failed, or Ctrl-C or SIGTERM ended the run after the step it was at. `fleet run`: clusters failed, and nothing else can begin."},
		{CodeDecision, "decision", "a human has to decide", "`check`, and `plan` and `fleet plan` with `--detailed-exitcode`: a finding with several answers is open; a decisions file answers it. Commands that run a migration: the cluster must not rest where the run paused, because etcd needs both of two members or a node does not drain, a check asks for a decision, or no window opens any more that is long enough. `fleet run`: the fleet is held, until somebody ends that with `--release`, one of its clusters must not rest, or no window opens any more."},
		{CodeUsage, "usage", "the command line, the environment or a configuration file is wrong", "Every command, before it has looked at anything."},
		{CodeInterrupted, "interrupted", "interrupted; state is saved", "Every command on Ctrl-C or SIGTERM. No file is left half written. Commands that run a migration: when they are told before their first step, while they wait, or a second time, after which the step at hand is done again by the next run; told once in the middle of a step they end after it, with 6. `fleet run`: always."},
	}
}

// WriteCodes writes docs/exit-codes.md.
func WriteCodes(w io.Writer) error {
	var text strings.Builder
	text.WriteString("# Exit codes\n\nWhat `migrate` tells a script. This page is made from `internal/cli/exit.go`; a test compares it.\n\n" +
		"| Code | Name | Meaning | When |\n| --- | --- | --- | --- |\n")
	for _, doc := range Codes() {
		fmt.Fprintf(&text, "| %d | %s | %s | %s |\n", doc.Code, doc.Name, doc.Meaning, doc.When)
	}
	text.WriteString("\nWhere several would fit, the first of this order wins: interrupted, usage, error, stale, blocked, decision, changes, ok.\n" +
		"The documents say the same: field `outcome` of a CheckReport, field `status` of a Plan.\n")
	_, err := io.WriteString(w, text.String())
	return err
}

// outcome ends a command with a code after its answer was given in full: there is nothing more to print.
type outcome struct {
	code Code
	// cause is why, for a caller that goes on with other clusters; it may be nil.
	cause error
}

func (o *outcome) Error() string { return fmt.Sprintf("outcome %d", o.code) }
func (o *outcome) Unwrap() error { return o.cause }

// ended returns the error that makes the program end with a code; nil for CodeOK.
func ended(code Code) error {
	if code == CodeOK {
		return nil
	}
	return &outcome{code: code}
}

// UsageError means that the caller asked for something that does not exist or does not fit together. Nothing was done.
type UsageError struct {
	// Message says what is wrong.
	Message string
	// Hint is what to type instead.
	Hint string
	// Err is the cause, where a program may want it; it may be nil.
	Err error
}

func (e *UsageError) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *UsageError) Unwrap() error { return e.Err }

func usage(hint, format string, args ...any) error {
	return &UsageError{Message: fmt.Sprintf(format, args...), Hint: hint}
}

// hinted adds the next thing to do to an error.
type hinted struct {
	err  error
	hint string
}

func (e *hinted) Error() string { return e.err.Error() }
func (e *hinted) Unwrap() error { return e.err }

func withHint(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &hinted{err: err, hint: fmt.Sprintf(format, args...)}
}

// hintOf returns the hint nearest to the caller.
func hintOf(err error) string {
	var given *hinted
	var wrong *UsageError
	switch {
	case errors.As(err, &given):
		return given.hint
	case errors.As(err, &wrong):
		return wrong.Hint
	default:
		return ""
	}
}

// CodeOf returns the exit code for what a command returned. An interrupted context counts for more than whatever it caused.
func CodeOf(ctx context.Context, err error) Code {
	var (
		end         *outcome
		wrong       *UsageError
		wrongCheck  *check.UsageError
		unsupported *report.UnsupportedError
	)
	switch {
	case err == nil:
		return CodeOK
	case errors.As(err, &end):
		return end.code
	case errors.Is(ctx.Err(), context.Canceled):
		return CodeInterrupted
	case errors.As(err, &wrong), errors.As(err, &wrongCheck), errors.As(err, &unsupported):
		return CodeUsage
	default:
		return CodeError
	}
}

// codeOfCheck is the code of a report.
func codeOfCheck(outcome check.Outcome) Code {
	switch outcome {
	case check.Pass, check.Warn, check.Skip:
		return CodeOK
	case check.Block:
		return CodeBlocked
	case check.Decide:
		return CodeDecision
	case check.Error:
		return CodeError
	default:
		return CodeError
	}
}

// codeOfPlan is the detailed code of a plan.
func codeOfPlan(p *plan.Plan) Code {
	switch {
	case plan.Stale(p.Drift):
		return CodeStale
	case !p.Status.Applyable && p.OnlyDecisions():
		return CodeDecision
	case !p.Status.Applyable:
		return CodeBlocked
	case p.Status.HasChanges:
		return CodeChanges
	default:
		return CodeOK
	}
}

// worseCode returns the code that counts for more when several clusters were looked at.
func worseCode(a, b Code) Code {
	order := []Code{CodeInterrupted, CodeUsage, CodeError, CodeStale, CodeBlocked, CodeDecision, CodeChanges}
	for _, code := range order {
		if a == code || b == code {
			return code
		}
	}
	return CodeOK
}
