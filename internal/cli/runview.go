package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// runView tells on standard error what a run does: a line per transition, and on a terminal a last line that shows what is waited for.
type runView struct {
	mu      sync.Mutex
	w       io.Writer
	rewrite bool
	quiet   bool
	clock   func() time.Time
	// steps are those that run, which are several where workers are replaced at the same time; ended tells that one of them has ended.
	steps []string
	ended bool
}

func (s *session) newRunView() *runView {
	return &runView{w: s.app.Err, rewrite: s.watched(), quiet: s.global.quiet, clock: s.app.Clock.Now}
}

// event shows one event.
func (v *runView) event(e history.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.quiet {
		return
	}
	v.clear()
	at := e.TS.UTC().Format(time.TimeOnly + "Z")
	v.follow(e)
	e.Message = printableText(e.Message) // What people and API servers say, for a terminal.
	switch e.Type {
	case history.StepStarted:
		_, _ = fmt.Fprintf(v.w, "%s  %-26s start    %s\n", at, e.Step, e.Message)
	case history.StepDone:
		_, _ = fmt.Fprintf(v.w, "%s  %-26s done     %s\n", at, e.Step, e.Took)
	case history.StepUndone:
		_, _ = fmt.Fprintf(v.w, "%s  %-26s undone   %s  %s\n", at, e.Step, e.Took, e.Message)
	case history.StepRetry:
		_, _ = fmt.Fprintf(v.w, "%s  %-26s retry    %s\n", at, e.Step, e.Message)
	case history.PhaseStarted, history.RunStarted, history.RunResumed, history.RunFinished, history.RunFailed, history.RunPaused, history.RunStopped:
		_, _ = fmt.Fprintf(v.w, "%s  %-26s %s\n", at, first(e.Phase, string(e.Type)), e.Message)
	case history.StepBlocked, history.StepSkipped:
		_, _ = fmt.Fprintf(v.w, "%s  %-26s %-8s %s\n", at, e.Step, strings.TrimPrefix(string(e.Type), "step."), e.Message)
	case history.CheckResult, history.WindowOpened, history.WindowClosing, history.WindowClosed, history.GateWaiting, history.GateApproved, history.GateExpired, history.HookDone, history.HookFailed, history.NotifyFailed:
		_, _ = fmt.Fprintf(v.w, "%s  %-26s %-8s %s\n", at, first(e.Step, e.Phase), strings.ReplaceAll(string(e.Type), ".", " "), oneLine(e.Message))
	case history.StepProgress:
		_, _ = fmt.Fprintf(v.w, "%s  %-26s note     %s\n", at, e.Step, e.Message)
	case history.PhaseDone, history.StepFailed:
	}
}

// follow keeps which steps run: those that were begun since one has ended.
func (v *runView) follow(e history.Event) {
	switch e.Type { //nolint:exhaustive // the others neither begin nor end a step
	case history.StepStarted:
		if v.ended {
			v.steps, v.ended = nil, false
		}
		if !slices.Contains(v.steps, e.Step) {
			v.steps = append(v.steps, e.Step)
		}
	case history.StepDone, history.StepUndone, history.StepFailed, history.StepBlocked, history.StepSkipped:
		v.ended = true
	}
}

// tell shows a sentence about the steps that run.
func (v *runView) tell(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.quiet {
		return
	}
	v.clear()
	text, running := fmt.Sprintf(format, args...), strings.Join(v.steps, ", ")
	if v.rewrite {
		_, _ = fmt.Fprintf(v.w, "           %-26s …        %s", running, text)
		return
	}
	_, _ = fmt.Fprintf(v.w, "%s  %-26s …        %s\n", v.clock().UTC().Format(time.TimeOnly+"Z"), running, text)
}

func (v *runView) clear() {
	if v.rewrite {
		_, _ = io.WriteString(v.w, "\r\x1b[K")
	}
}
