package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/gate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/hook"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/observe"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
)

// What a run asks of the world around it and tells it: gates, hooks, notifications and metrics.

// gates are the gates of a playbook. Addresses are read now, so that one that is missing is found before anything begins.
func (s *session) gates(e *playbook.Effective) ([]gate.Gate, error) {
	out := make([]gate.Gate, 0, len(e.Spec.Gates))
	for i, g := range e.Spec.Gates {
		made := gate.Gate{Name: g.Name, Before: g.Before, Checks: g.Checks, Again: time.Duration(g.Again)}
		if g.HTTP != nil {
			made.URL, made.Status, made.Timeout = g.HTTP.URL, g.HTTP.Status, time.Duration(g.HTTP.Timeout)
			if made.Secret = made.URL == ""; made.Secret {
				var err error
				if made.URL, err = s.addressFrom(e, fmt.Sprintf("spec.gates[%d].http.urlFrom", i), g.HTTP.URLFrom); err != nil {
					return nil, err
				}
			}
			if g.HTTP.Expect != "" {
				expect, err := gate.ParseExpectation(g.HTTP.Expect)
				if err != nil {
					return nil, fmt.Errorf("gate %s: expect: %w", g.Name, err)
				}
				made.Expect = expect
			}
		}
		out = append(out, made)
	}
	return out, nil
}

// addressFrom reads an address that is not in the playbook, because it may be a secret.
func (s *session) addressFrom(e *playbook.Effective, path string, from playbook.From) (string, error) {
	address := s.env[from.Env]
	if from.File != "" {
		data, err := readSmallFile(e.Beside(path+".file", from.File))
		if err != nil {
			return "", fmt.Errorf("%s: reading the address: %w", path, err)
		}
		address = string(data)
	}
	address = strings.TrimSpace(address)
	s.secrets.know(address)
	if u, err := url.Parse(address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", usage("", "%s: what %s holds is no address that begins with http:// or https://", path, first(from.Env, from.File))
	}
	return address, nil
}

// justRead is how long a gate goes by what was read of a cluster. A run that only finds that a gate is still shut has read it a moment ago.
const justRead = 10 * time.Second

// ready asks the gates of a playbook for the engine; nil when there are none.
func (s *session) ready(o runOptions, u *undertaking) func(context.Context, migrate.Start) *migrate.Refusal {
	if len(o.gates) == 0 {
		return nil
	}
	asker := &gate.Asker{Client: gate.Client(nil), Checks: func(ctx context.Context) ([]check.Result, error) {
		if age := s.app.Clock.Since(u.readAt); u.found != nil && age >= 0 && age < justRead {
			return u.found.report.Results, nil
		}
		defer s.ending()()
		now, err := s.undertake(ctx, o, u.id)
		if err != nil {
			return nil, err
		}
		return now.found.report.Results, nil
	}}
	return func(ctx context.Context, start migrate.Start) *migrate.Refusal {
		gates := o.gates
		if start.Grows {
			gates = gate.WithoutChecks(gates) // They ask under the names of the legacy control plane, which has gone by then.
		}
		refusal := asker.Ask(ctx, gates, gate.Places(start.Phase, start.NoReturn, start.Node, start.First)...)
		if refusal == nil {
			return nil
		}
		return &migrate.Refusal{Gate: refusal.Gate.Name, Why: s.secrets.text(refusal.Why), Again: refusal.Gate.Again}
	}
}

// stillShut asks the address of a gate that was shut once more, and nothing else; true tells that it says the same.
func (s *session) stillShut(ctx context.Context, g gate.Gate, why string) bool {
	err := (&gate.Asker{Client: gate.Client(nil)}).Knock(ctx, g)
	return err != nil && s.secrets.text(err.Error()) == why
}

// reactions are the hooks and notifications of a playbook. Addresses are read now, so that one that is missing is found before anything begins.
func (s *session) reactions(e *playbook.Effective) ([]hook.Hook, []hook.Notification, error) {
	hooks := make([]hook.Hook, 0, len(e.Spec.Hooks))
	for i, h := range e.Spec.Hooks {
		made := hook.Hook{Name: h.Name, On: h.On, Exec: slices.Clone(h.Exec), Timeout: time.Duration(h.Timeout)}
		// A bare name is looked for in PATH, as shells do; a timer's working directory is nobody's choice.
		if strings.ContainsRune(h.Exec[0], filepath.Separator) {
			program, err := filepath.Abs(e.Beside(fmt.Sprintf("spec.hooks[%d].exec[0]", i), h.Exec[0]))
			if err != nil {
				return nil, nil, fmt.Errorf("looking for the program of hook %s: %w", h.Name, err)
			}
			made.Exec[0] = program
		}
		hooks = append(hooks, made)
	}
	notes := make([]hook.Notification, 0, len(e.Spec.Notifications))
	for i, n := range e.Spec.Notifications {
		address, err := s.addressFrom(e, fmt.Sprintf("spec.notifications[%d].urlFrom", i), n.URLFrom)
		if err != nil {
			return nil, nil, err
		}
		notes = append(notes, hook.Notification{Name: n.Name, On: n.On, URL: address, Throttle: s.throttles.of(address, time.Duration(n.Throttle)), Timeout: time.Duration(n.Timeout)})
	}
	return hooks, notes, nil
}

// heardBy has a rollback heard by whom its playbook tells. Nothing else of the playbook counts for it, and nothing that is wrong there keeps a cluster from being taken back.
func (s *session) heardBy(o *runOptions, id string) {
	files := o.examine.bookFiles
	o.examine.bookFiles = nil
	if len(files) == 0 {
		return
	}
	e, err := readBook(files, nil)
	if err == nil && !e.Spec.Clusters.MayBeFor(id) {
		err = notFor(e.Metadata.Name, id)
	}
	if err == nil {
		o.hooks, o.notes, err = s.reactions(e)
	}
	if err != nil {
		o.hooks, o.notes = nil, nil
		s.log.WithField("err", err).Warn("hooks and notifications hear nothing of this rollback")
	}
}

// throttles bound what is sent to addresses, for all runs of a process: clusters of a fleet and turns of a run share the chat that they tell.
type throttles struct {
	mu sync.Mutex
	by map[throttled]*hook.Throttle
}

type throttled struct {
	address string
	every   time.Duration
}

// of is the bound of an address; nil when there is none.
func (t *throttles) of(address string, every time.Duration) *hook.Throttle {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := throttled{address, every}
	if t.by == nil {
		t.by = map[throttled]*hook.Throttle{}
	}
	if _, found := t.by[key]; !found {
		t.by[key] = hook.NewThrottle(every)
	}
	return t.by[key]
}

// listener is what hears a run's events; nil for nobody.
func (s *session) listener(ctx context.Context, o runOptions) migrate.Listener {
	if len(o.hooks)+len(o.notes) == 0 {
		return nil
	}
	return hook.New(ctx, hook.Options{
		Hooks: o.hooks, Notifications: o.notes, Client: gate.Client(nil), Clock: s.app.Clock, Clean: func(text string) string { return printableText(s.secrets.text(text)) }, Environ: s.environ(),
	})
}

// listen has hooks and notifications hear a run, and returns what waits for them in the end. It is not for the end of a turn: a hook that hangs would keep a run that waits from its next
// window.
func (s *session) listen(ctx context.Context, o *runOptions) (end func()) {
	listens, deaf := context.WithCancel(context.WithoutCancel(ctx))
	listener := s.listener(listens, *o)
	o.listener = listener
	return func() {
		s.hearOut(s.hard(ctx), listener, s.newRunView(), o.hearsFor())
		endHooks(ctx, listener, deaf)
	}
}

// longestHearing is how long hooks and notifications may take together when the run is over. Each of them has a time of its own, but a program that hangs would hang for every event that
// waits for it, while a timer begins no other run, and the next cluster of a fleet does not begin.
const longestHearing = 5 * time.Minute

// hearsFor is how long what hears a run is waited for; one that has more time than that keeps it.
func (o *runOptions) hearsFor() time.Duration {
	longest := longestHearing
	for _, h := range o.hooks {
		longest = max(longest, h.Timeout)
	}
	for _, n := range o.notes {
		longest = max(longest, n.Timeout)
	}
	return longest
}

// hearOut waits for hooks and notifications that are still under way when the log is closed. Each of them has a time after which it is ended, and so have all together; a second Ctrl-C ends all.
func (s *session) hearOut(parent context.Context, listener migrate.Listener, view *runView, atMost time.Duration) {
	if listener == nil {
		return
	}
	ctx, cancel := context.WithTimeout(parent, atMost)
	defer cancel()
	listener.Settle(ctx)
	if ctx.Err() != nil && parent.Err() == nil {
		_, _ = fmt.Fprintf(s.app.Err, "hooks and notifications have not ended in %s; those that are left are ended, and nobody hears of the rest\n", atMost)
	}
	for _, e := range listener.Results() {
		e.TS = s.app.Clock.Now()
		view.event(e)
	}
}

// endHooks ends what is still under way, and waits for a moment until it has ended: hooks have process groups of their own, so the second Ctrl-C ends only those that are
// ended before this program is.
func endHooks(ctx context.Context, listener migrate.Listener, end context.CancelFunc) {
	end()
	if listener == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	listener.Settle(ctx)
}

// environ is what programs get as their environment: that of this one, but for its secrets.
func (s *session) environ() []string {
	return slices.DeleteFunc(slices.Clone(s.app.Environ), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(secretVariables(), name)
	})
}

func addMetricsFlag(flags *pflag.FlagSet, address *string) {
	flags.StringVar(address, "metrics-address", "", "serve Prometheus metrics of the run here, for example 127.0.0.1:9090 (default: they are not)")
}

// serveMetrics answers scrapes until the program ends; nil when nobody asked for it.
func (s *session) serveMetrics(ctx context.Context, address string) (*observe.Process, error) {
	if address == "" {
		return nil, nil //nolint:nilnil // no metrics are an ordinary answer
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, usage("--metrics-address 127.0.0.1:0", "--metrics-address: %s", err)
	}
	metrics := observe.New()
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics.Handler())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.WithField("err", err).Warn("metrics are not served any more")
		}
	}()
	s.atEnd(server.Close)
	_, _ = fmt.Fprintf(s.app.Err, "metrics: http://%s/metrics\n", listener.Addr())
	return metrics, nil
}

// watchedBy lets metrics hear what the view hears.
func watchedBy(o runOptions, u *undertaking, engine *migrate.Engine, view *runView) func(history.Event) {
	if o.metrics == nil {
		return view.event
	}
	var workers, replaced []string
	for _, phase := range migrate.Describe(engine.Graph, u.object) {
		for _, step := range phase.Steps {
			if !plan.ReplacesWorker(step.ID) {
				continue
			}
			workers = append(workers, step.ID)
			if step.State == strings.ToLower(string(migrationv1alpha1.StepDone)) {
				replaced = append(replaced, step.ID)
			}
		}
	}
	o.metrics.Begin(workers, replaced, engine.Writes.Writes)
	return func(e history.Event) {
		o.metrics.Event(e)
		view.event(e)
	}
}
