package hook

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// Hook is a program that is run when something happens. It gets the event as JSON on its standard input.
type Hook struct {
	Name string
	// On are types of events; run.* means all that begin so.
	On      []string
	Exec    []string
	Timeout time.Duration
}

// Notification is an address that events are sent to, as JSON.
type Notification struct {
	Name string
	On   []string
	// URL is the address. It may be secret by itself, and is never shown.
	URL     string
	Timeout time.Duration
	// Throttle bounds how often something is sent; nil does not. Runs that follow each other in one process share it.
	Throttle *Throttle

	line line
}

// Throttle bounds how often an address is sent something. What is left out is counted in what is sent next; the events that end a run are always sent, unless it goes on by itself.
type Throttle struct {
	mu    sync.Mutex
	limit *rate.Limiter
	// left is how many events were not sent.
	left int
}

// NewThrottle makes one that lets an event through every so often; nil when there is no bound.
func NewThrottle(every time.Duration) *Throttle {
	if every <= 0 {
		return nil
	}
	return &Throttle{limit: rate.NewLimiter(rate.Every(every), 1)}
}

// pass tells whether an event is sent, and how many were left out before it.
func (t *Throttle) pass(now time.Time, e history.Event) (sent bool, left int) {
	if t == nil {
		return true, 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.limit.AllowN(now, 1) && !ends(e) {
		t.left++
		return false, 0
	}
	left, t.left = t.left, 0
	return true, left
}

// line is what is done one after the other.
type line struct {
	// of says what it is, for people, and failed is the event of what fails in it.
	of     string
	failed history.EventType
	queue  []func(ctx context.Context) history.Event
	busy   bool
	// dropped tells that the queue was full, and that it was said.
	dropped bool
}

// Runner runs hooks and sends notifications beside the run, which never waits for them. The hooks run one after the other, in the order of what happened, and so
// does what each address gets; but a hook that hangs keeps no notification, and an address that does not answer no other one.
type Runner struct {
	hooks  []Hook
	notes  []*Notification
	client *http.Client
	clock  clock.PassiveClock
	// clean takes secrets out of texts.
	clean   func(string) string
	environ []string

	// mu keeps the lines, too.
	mu      sync.Mutex
	line    line
	results []history.Event
	// busy is how many lines are.
	busy int
	idle chan struct{}
	ctx  context.Context //nolint:containedctx // it is that of the run, which everything beside it ends with
}

// Options are what a runner is made of.
type Options struct {
	Hooks         []Hook
	Notifications []Notification
	Client        *http.Client
	Clock         clock.PassiveClock
	Clean         func(string) string
	// Environ is what programs get as their environment.
	Environ []string
}

// New makes a runner whose work ends with a context.
func New(ctx context.Context, o Options) *Runner {
	r := &Runner{hooks: o.Hooks, client: o.Client, clock: o.Clock, clean: o.Clean, environ: o.Environ, ctx: ctx, line: line{of: "hooks", failed: history.HookFailed}, idle: make(chan struct{})}
	close(r.idle)
	for _, n := range o.Notifications {
		n.line = line{of: "notifications " + n.Name, failed: history.NotifyFailed}
		r.notes = append(r.notes, &n)
	}
	return r
}

// Matches tells that a type of event is meant by one of the patterns.
func Matches(patterns []string, kind history.EventType) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		prefix, all := strings.CutSuffix(p, "*")
		return p == string(kind) || all && strings.HasPrefix(string(kind), prefix)
	})
}

// Hear takes an event, and returns at once.
func (r *Runner) Hear(e history.Event) {
	e.Message = r.clean(e.Message)
	for _, h := range r.hooks {
		if Matches(h.On, e.Type) {
			r.later(&r.line, func(ctx context.Context) history.Event { return r.exec(ctx, h, e) })
		}
	}
	for _, n := range r.notes {
		if !Matches(n.On, e.Type) {
			continue
		}
		sent, left := n.Throttle.pass(r.clock.Now(), e)
		if !sent {
			continue
		}
		r.later(&n.line, func(ctx context.Context) history.Event { return r.send(ctx, n, e, left) })
	}
}

// ends tells of events that end a run. One that rests between two workers or two nights has not ended.
func ends(e history.Event) bool {
	return !e.Resting && slices.Contains([]history.EventType{history.RunFinished, history.RunFailed, history.RunPaused, history.RunStopped}, e.Type)
}

// mostQueued keeps a program that hangs from having a run remember everything.
const mostQueued = 1000

// later puts work at the end of a line.
func (r *Runner) later(l *line, work func(ctx context.Context) history.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(l.queue) >= mostQueued {
		if !l.dropped {
			r.results = append(r.results, history.Event{Type: l.failed, Message: fmt.Sprintf("%d %s wait for each other; later ones are left out", mostQueued, l.of)})
		}
		l.dropped = true
		return
	}
	l.queue, l.dropped = append(l.queue, work), false
	if l.busy {
		return
	}
	l.busy = true
	if r.busy++; r.busy == 1 {
		r.idle = make(chan struct{})
	}
	go r.work(l)
}

// work does what is in a line, until nothing is.
func (r *Runner) work(l *line) {
	for next := r.next(l); next != nil; next = r.next(l) {
		result := next(r.ctx)
		if result.Type == "" {
			continue
		}
		r.mu.Lock()
		r.results = append(r.results, result)
		r.mu.Unlock()
	}
}

// next takes the first work from a line, which is not busy any more when there is none.
func (r *Runner) next(l *line) func(ctx context.Context) history.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(l.queue) > 0 {
		first := l.queue[0]
		l.queue = l.queue[1:]
		return first
	}
	l.busy = false
	if r.busy--; r.busy == 0 {
		close(r.idle)
	}
	return nil
}

// Results are the events of what has come to its end since they were asked for last.
func (r *Runner) Results() []history.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.results
	r.results = nil
	return out
}

// Settle waits until nothing is under way any more, or the context ends.
func (r *Runner) Settle(ctx context.Context) {
	r.mu.Lock()
	idle := r.idle
	r.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// mostOutput is how much of a program's output is kept.
const mostOutput = 2048

// exec runs a program.
func (r *Runner) exec(run context.Context, h Hook, e history.Event) history.Event {
	began := r.clock.Now()
	result := history.Event{Type: history.HookDone, Phase: e.Phase, Step: e.Step}
	name := "hook " + h.Name + " on " + string(e.Type)
	text, err := json.Marshal(e)
	if err != nil {
		result.Type, result.Message = history.HookFailed, name+": "+err.Error()
		return result
	}
	ctx, cancel := context.WithTimeout(run, h.Timeout)
	defer cancel()
	output := &tail{}
	command := exec.CommandContext(ctx, h.Exec[0], h.Exec[1:]...) //nolint:gosec // the playbook's own program is what a hook is
	command.Stdin, command.Stdout, command.Stderr, command.Env = bytes.NewReader(append(text, '\n')), output, output, r.environ
	ownGroup(command)
	// What the program leaves behind must not keep the run.
	command.WaitDelay = time.Second
	err = command.Run()
	said := strings.TrimSpace(r.clean(output.String()))
	switch {
	case run.Err() != nil:
		err = errors.New("it was ended with the run")
	case ctx.Err() != nil:
		err = fmt.Errorf("it was ended after %s", h.Timeout)
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil
	}
	result.Took = r.clock.Since(began).Round(time.Millisecond).String()
	result.Message = name
	if err != nil {
		result.Type = history.HookFailed
		result.Message += ": " + r.clean(err.Error())
	}
	if said != "" {
		result.Message += ": " + short(said)
	}
	return result
}

// tail keeps the end of what is written: a program says last why it failed.
type tail struct {
	mu   sync.Mutex
	text []byte
	cut  bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	// More than is kept stays until the end, so that a secret is not cut in the middle and then not found.
	if over := len(t.text) - 8*mostOutput; over > 0 {
		t.text, t.cut = t.text[over:], true
	}
	return len(p), nil
}

// String is valid text, cut to whole lines where it was cut.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := string(t.text)
	if t.cut {
		_, text, _ = strings.Cut(text, "\n")
	}
	return strings.ToValidUTF8(text, "?")
}

// payload is what an address gets.
type payload struct {
	history.Event

	// Text says it in a sentence, as chats show it.
	Text string `json:"text"`
	// Suppressed is how many events were left out since the last one that was sent.
	Suppressed int `json:"suppressed,omitempty"`
}

// send sends an event to an address. Only what fails is an event again.
func (r *Runner) send(ctx context.Context, n *Notification, e history.Event, left int) history.Event {
	text := strings.Join(strings.Fields(fmt.Sprintf("%s: %s %s %s %s", e.Cluster, e.Type, cmp.Or(e.Step, e.Phase), e.Took, e.Message)), " ")
	body, err := json.Marshal(payload{e, text, left})
	if err == nil {
		err = r.post(ctx, n, body)
	}
	if err == nil {
		return history.Event{}
	}
	return history.Event{Type: history.NotifyFailed, Phase: e.Phase, Step: e.Step, Message: r.clean("notification " + n.Name + " of " + string(e.Type) + ": " + err.Error())}
}

func (r *Runner) post(ctx context.Context, n *Notification, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, n.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, n.URL, bytes.NewReader(body))
	if err != nil {
		return errors.New("its address is none")
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := r.client.Do(request)
	if err != nil {
		// The library puts the address before its errors, and the address may be a secret.
		var of *url.Error
		if errors.As(err, &of) {
			err = of.Err
		}
		return fmt.Errorf("it does not answer: %w", err)
	}
	defer func() { _ = answer.Body.Close() }() // what it said is read
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, mostOutput))
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("it answers with status %d", answer.StatusCode)
	}
	return nil
}

// short cuts a text to what an event takes.
func short(text string) string {
	if len(text) <= mostOutput {
		return text
	}
	cut := len(text) - mostOutput
	for cut < len(text) && !utf8.RuneStart(text[cut]) {
		cut++
	}
	return "…" + text[cut:]
}
