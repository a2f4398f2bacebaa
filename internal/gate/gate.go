package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
)

// Names of what a gate can stand before, besides the names of phases.
const (
	// Node is every worker that is replaced.
	Node = "node"
	// NoReturn is the first step that cannot be taken back.
	NoReturn = "point-of-no-return"
)

// Gate is a condition for something to begin.
type Gate struct {
	Name string
	// Before are phases, [Node] and [NoReturn].
	Before []string
	// Checks are ids of checks that have to pass, or to warn.
	Checks []string
	// URL has to answer with the status, and as expected, within the timeout; empty for none.
	URL string
	// Secret tells that nothing of the address is shown but whom it leads to.
	Secret  bool
	Status  int
	Expect  Expectation
	Timeout time.Duration
	// Again is how long to wait before it is asked once more.
	Again time.Duration
}

// Places are what gates stand before that are asked when something begins: the first worker begins its phase, too.
func Places(phase string, noReturn, node, first bool) []string {
	switch {
	case noReturn:
		return []string{NoReturn}
	case first:
		return []string{phase, Node}
	case node:
		return []string{Node}
	}
	return []string{phase}
}

// WithoutChecks are gates that ask only their addresses.
func WithoutChecks(gates []Gate) []Gate {
	out := slices.Clone(gates)
	for i := range out {
		out[i].Checks = nil
	}
	return out
}

// Asker asks gates.
type Asker struct {
	// Client makes the requests. It must not follow redirects: the status is that of the address itself.
	Client *http.Client
	// Checks looks at the cluster and returns the results of all checks.
	Checks func(ctx context.Context) ([]check.Result, error)
}

// Client makes requests for gates and notifications on a transport; nil is the usual one.
func Client(transport http.RoundTripper) *http.Client {
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Refusal says which gate is shut, and why.
type Refusal struct {
	Gate Gate
	Why  string
}

// Ask asks every gate that stands before what begins, in their order, until one is shut; nil means that all are open. What cannot be found out shuts a gate as well. However many gates
// want to know the results of checks, the cluster is looked at once.
func (a *Asker) Ask(ctx context.Context, gates []Gate, before ...string) *Refusal {
	results := sync.OnceValues(func() ([]check.Result, error) { return a.Checks(ctx) })
	for _, g := range gates {
		if !slices.ContainsFunc(before, func(place string) bool { return slices.Contains(g.Before, place) }) {
			continue
		}
		if err := g.judge(results); err != nil {
			return &Refusal{g, err.Error()}
		}
		if err := a.address(ctx, g); err != nil {
			return &Refusal{g, err.Error()}
		}
	}
	return nil
}

// Knock asks only the address of a gate, which has one. The error is why the gate is shut.
func (a *Asker) Knock(ctx context.Context, g Gate) error { return a.address(ctx, g) }

// judge tells why the checks of a gate shut it.
func (g *Gate) judge(look func() ([]check.Result, error)) error {
	if len(g.Checks) == 0 {
		return nil
	}
	results, err := look()
	if err != nil {
		return fmt.Errorf("the checks could not be made: %w", err)
	}
	for _, id := range g.Checks {
		i := slices.IndexFunc(results, func(r check.Result) bool { return r.ID == id })
		switch {
		case i < 0:
			return fmt.Errorf("check %s was not made", id)
		case results[i].Outcome != check.Pass && results[i].Outcome != check.Warn:
			return fmt.Errorf("check %s says %s: %s", id, results[i].Outcome, strings.TrimSpace(results[i].Title+". "+results[i].Detail))
		}
	}
	return nil
}

// mostBody is how much of an answer is read, in bytes.
const mostBody = 1 << 20

func (a *Asker) address(ctx context.Context, g Gate) error {
	if g.URL == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", g.shown(), bare(err))
	}
	answer, err := a.Client.Do(request)
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", g.shown(), bare(err))
	}
	defer func() { _ = answer.Body.Close() }() // what matters of it is read
	if answer.StatusCode != g.Status {
		return fmt.Errorf("%s answers with status %d, and not %d", g.shown(), answer.StatusCode, g.Status)
	}
	if !g.Expect.any() {
		return nil // However long the answer is, and whether it ends: nobody wants to know.
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, mostBody+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: reading its answer: %w", g.shown(), bare(err))
	case len(body) > mostBody:
		return fmt.Errorf("%s answers with more than %d bytes", g.shown(), mostBody)
	}
	if err := g.Expect.judge(body); err != nil {
		return fmt.Errorf("%s: %w", g.shown(), err)
	}
	return nil
}

// shown is the gate's address as messages have it.
func (g *Gate) shown() string {
	if !g.Secret {
		return Shown(g.URL)
	}
	u, err := url.Parse(g.URL)
	if err != nil {
		return "the address"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
}

// Shown is an address without what may be secret in it: its query, its fragment and its credentials.
func Shown(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "the address"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// bare is an error without the address that the library puts before it.
func bare(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}
