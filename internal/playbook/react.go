package playbook

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/gate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// What holds for gates, hooks and notifications where nobody says anything.
const (
	builtInAgain    = Duration(5 * time.Minute)
	builtInAnswer   = Duration(10 * time.Second)
	builtInHook     = Duration(time.Minute)
	builtInThrottle = Duration(time.Minute)

	// leastAgain keeps a run that waits for a gate from doing nothing but looking at the whole cluster.
	leastAgain = Duration(10 * time.Second)

	// mostReactions is more than anybody has.
	mostReactions = 50
)

// react puts in what holds for gates, hooks and notifications where nobody says anything.
func (e *Effective) react() {
	fill := func(path string, value *Duration, builtIn Duration) {
		if _, said := e.Values[path]; !said {
			*value = builtIn
			e.Values[path], e.Origins[path] = builtIn.String(), "built-in"
		}
	}
	for i := range e.Spec.Gates {
		g, path := &e.Spec.Gates[i], fmt.Sprintf("spec.gates[%d]", i)
		fill(path+".again", &g.Again, builtInAgain)
		if g.HTTP == nil {
			continue
		}
		if _, said := e.Values[path+".http.url"]; said {
			e.Values[path+".http.url"] = shownAddress(g.HTTP.URL)
		}
		fill(path+".http.timeout", &g.HTTP.Timeout, builtInAnswer)
		if _, said := e.Values[path+".http.status"]; !said {
			g.HTTP.Status = http.StatusOK
			e.Values[path+".http.status"], e.Origins[path+".http.status"] = "200", "built-in"
		}
	}
	for i := range e.Spec.Hooks {
		fill(fmt.Sprintf("spec.hooks[%d].timeout", i), &e.Spec.Hooks[i].Timeout, builtInHook)
		for k, argument := range e.Spec.Hooks[i].Exec {
			path := fmt.Sprintf("spec.hooks[%d].exec[%d]", i, k)
			if _, said := e.Values[path]; said && k > 0 {
				e.Values[path] = "not shown; sha256 " + digest(argument)
			}
		}
	}
	for i := range e.Spec.Notifications {
		path := fmt.Sprintf("spec.notifications[%d]", i)
		fill(path+".throttle", &e.Spec.Notifications[i].Throttle, builtInThrottle)
		fill(path+".timeout", &e.Spec.Notifications[i].Timeout, builtInAnswer)
	}
}

// shownAddress is an address as it stands among the values, which plans keep and explain prints. What may be secret in it is left out; a digest of the whole stands for that, so
// that a plan and a run with another address are still told apart.
func shownAddress(address string) string {
	u, err := url.Parse(address)
	if err == nil && u.RawQuery == "" && u.Fragment == "" && u.User == nil {
		return address
	}
	return fmt.Sprintf("%s (and what is not shown; sha256 %s)", gate.Shown(address), digest(address))
}

// digest stands for a text that may be secret: a token in an address, or an argument of a hook, which may be a header with a password.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6])
}

// reactionProblems are what is wrong with gates, hooks and notifications.
func (e *Effective) reactionProblems() []problem {
	var out []problem
	add := func(path, format string, args ...any) { out = append(out, problem{path, fmt.Sprintf(format, args...)}) }
	if n := len(e.Spec.Gates) + len(e.Spec.Hooks) + len(e.Spec.Notifications); n > mostReactions {
		add("spec", "it has %d gates, hooks and notifications; there can be %d", n, mostReactions)
		return out
	}
	first := map[string]string{}
	for i := range e.Spec.Gates {
		path, name := fmt.Sprintf("spec.gates[%d]", i), e.Spec.Gates[i].Name
		out = append(out, e.Spec.Gates[i].problems(path)...)
		if at, taken := first[name]; taken {
			add(path+".name", "another gate is called %s, at %s; whoever reads that it is shut has to know which one", name, at)
			continue
		}
		first[name] = e.Origins[path+".name"]
	}
	for i, h := range e.Spec.Hooks {
		path := fmt.Sprintf("spec.hooks[%d]", i)
		out = append(out, named(path, h.Name, h.On)...)
		if len(h.Exec) == 0 || strings.TrimSpace(h.Exec[0]) == "" {
			add(path+".exec", "it names no program")
		}
		if h.Timeout == 0 {
			add(path+".timeout", "it is 0s, and no program ends so fast")
		}
	}
	for i, n := range e.Spec.Notifications {
		path := fmt.Sprintf("spec.notifications[%d]", i)
		out = append(out, named(path, n.Name, n.On)...)
		if (n.URLFrom.Env == "") == (n.URLFrom.File == "") {
			add(path+".urlFrom", "it needs one of env and file")
		}
		if n.Timeout == 0 {
			add(path+".timeout", "it is 0s, and nobody answers so fast")
		}
	}
	return out
}

// named wants a name and types of events that exist.
func named(path, name string, on []string) []problem {
	var out []problem
	if strings.TrimSpace(name) == "" {
		out = append(out, problem{path + ".name", "it is missing"})
	}
	if len(on) == 0 {
		out = append(out, problem{path + ".on", "it names no events"})
	}
	for i, pattern := range on {
		prefix, all := strings.CutSuffix(pattern, "*")
		matches := func(t history.EventType) bool {
			return string(t) == pattern || all && strings.HasPrefix(string(t), prefix)
		}
		at := fmt.Sprintf("%s.on[%d]", path, i)
		switch {
		case !slices.ContainsFunc(history.EventTypes(), matches):
			out = append(out, problem{at, fmt.Sprintf("there are no events %q; migrate events --schema lists them", pattern)})
		case !slices.ContainsFunc(history.HeardTypes(), matches):
			out = append(out, problem{at, fmt.Sprintf("nobody is told of %q: what came of telling people would be told for ever", pattern)})
		}
	}
	return out
}

func (g *Gate) problems(path string) []problem {
	var out []problem
	add := func(path, format string, args ...any) { out = append(out, problem{path, fmt.Sprintf(format, args...)}) }
	if strings.TrimSpace(g.Name) == "" {
		add(path+".name", "it is missing")
	}
	if len(g.Before) == 0 {
		add(path+".before", "it says nothing that waits")
	}
	places := append(windowPhases(), gate.NoReturn, gate.Node)
	for i, before := range g.Before {
		at := fmt.Sprintf("%s.before[%d]", path, i)
		switch {
		case !slices.Contains(places, before):
			add(at, "it is %q; it can be %s", before, strings.Join(places, ", "))
		case len(g.Checks) > 0 && slices.Contains([]string{plan.PhaseWorkers, plan.PhaseFinalize, gate.Node}, before):
			add(at, "checks look at the legacy control plane, which is gone before %s; ask an address with http", before)
		}
	}
	if len(g.Checks) == 0 && g.HTTP == nil {
		add(path, "it needs checks or http")
	}
	if g.Again < leastAgain {
		add(path+".again", "it is %s; it can be %s or more: the whole cluster is looked at every time", g.Again, leastAgain)
	}
	for i, id := range g.Checks {
		if !slices.ContainsFunc(check.Registry(), func(c check.Check) bool { return c.ID == id }) {
			add(fmt.Sprintf("%s.checks[%d]", path, i), "there is no check %q; migrate explain lists them", id)
		}
	}
	if g.HTTP != nil {
		out = append(out, g.HTTP.problems(path+".http")...)
	}
	return out
}

func (p *Probe) problems(path string) []problem {
	out := p.addressProblems(path)
	if p.Status < 100 || p.Status > 599 {
		out = append(out, problem{path + ".status", fmt.Sprintf("it is %d; it can be 100 to 599", p.Status)})
	}
	if p.Timeout == 0 {
		out = append(out, problem{path + ".timeout", "it is 0s, and nobody answers so fast"})
	}
	if p.Expect != "" {
		if _, err := gate.ParseExpectation(p.Expect); err != nil {
			out = append(out, problem{path + ".expect", err.Error()})
		}
	}
	return out
}

// addressProblems are what is wrong with where the address is, and with an address that is written down.
func (p *Probe) addressProblems(path string) []problem {
	var out []problem
	u, err := url.Parse(p.URL)
	switch {
	case p.URLFrom != (From{}) && p.URL != "" || p.URLFrom == (From{}) && p.URL == "":
		out = append(out, problem{path, "it needs one of url and urlFrom"})
	case p.URL == "":
		if (p.URLFrom.Env == "") == (p.URLFrom.File == "") {
			out = append(out, problem{path + ".urlFrom", "it needs one of env and file"})
		}
	// The address is not shown: what is wrong with it may be that it holds a secret.
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		out = append(out, problem{path + ".url", "it must be an address that begins with http:// or https://"})
	case u.User != nil:
		out = append(out, problem{path + ".url", "it must hold no user and no password"})
	}
	return out
}
