package health

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// Rules are the durations and facts a judgement needs.
type Rules struct {
	Role contract.Role
	// Boot is how long the agent may stay silent after QEMU started or the guest rebooted, Silence afterwards.
	Boot, Silence time.Duration
}

// State is what is known. It may be used from several goroutines.
type State struct {
	rules Rules
	clock clock.PassiveClock

	mu      sync.Mutex
	phase   phase
	since   time.Time
	heard   time.Time
	guest   contract.Guest
	trouble string
	format  contract.Format
}

type phase string

const (
	preparing phase = "preparing"
	running   phase = "running"
	ended     phase = "ended"
)

// Status is the state for people.
type Status struct {
	Phase string `json:"phase"`
	// Since is when QEMU started or the guest last rebooted.
	Since time.Time `json:"since"`
	// Heard is the time of the last beat.
	Heard time.Time       `json:"heard,omitzero"`
	Guest *contract.Guest `json:"guest,omitempty"`
	Live  string          `json:"live"`
	Ready string          `json:"ready"`
}

// New makes a state of a machine that is being prepared.
func New(c clock.PassiveClock, rules Rules) *State {
	return &State{rules: rules, clock: c, phase: preparing, since: c.Now()}
}

// Started says that QEMU runs, or that the guest began to boot anew.
func (s *State) Started() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase, s.since, s.heard, s.guest = running, s.clock.Now(), time.Time{}, contract.Guest{}
}

// Format says of what format the bootstrap data are, which is known only after probes are answered.
func (s *State) Format(f contract.Format) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.format = f
}

// Ended says that QEMU is gone.
func (s *State) Ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase = ended
}

// Beat says what the agent sees.
func (s *State) Beat(g contract.Guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard, s.guest = s.clock.Now(), g
}

// Trouble says what is wrong with the machine from outside; empty when it is over.
func (s *State) Trouble(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = text
}

// Silent is how long nothing was heard of the guest.
func (s *State) Silent() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heard.IsZero() {
		return s.clock.Since(s.since)
	}
	return s.clock.Since(s.heard)
}

// Live says whether a restart would not help, and why it thinks so.
func (s *State) Live() (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live()
}

func (s *State) live() (bool, string) {
	now := s.clock.Now()
	switch {
	case s.phase == ended:
		return false, "QEMU has ended"
	case s.phase == preparing:
		quiet := now.Sub(s.since)
		return quiet <= s.rules.Boot, fmt.Sprintf("QEMU is being prepared for %s", quiet.Round(time.Second))
	case s.heard.IsZero():
		quiet := now.Sub(s.since)
		return quiet <= s.rules.Boot, fmt.Sprintf("the guest boots for %s, it may take %s", quiet.Round(time.Second), s.rules.Boot)
	default:
		quiet := now.Sub(s.heard)
		return quiet <= s.rules.Silence, fmt.Sprintf("the guest spoke %s ago, it may be silent for %s", quiet.Round(time.Second), s.rules.Silence)
	}
}

// Ready says whether the machine does its work, and what is missing.
func (s *State) Ready() (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready()
}

func (s *State) ready() (bool, string) {
	alive, why := s.live()
	switch {
	case !alive || s.phase != running || s.heard.IsZero():
		return false, why
	case s.trouble != "":
		return false, s.trouble
	case len(s.guest.NotMounted) > 0:
		return false, fmt.Sprintf("not mounted in the guest: %s; %s", strings.Join(s.guest.NotMounted, ", "), strings.Join(s.guest.Problems, "; "))
	case s.rules.Role == contract.RoleControlPlane:
		// kubeadm's kubelet joins through the endpoint before the bootstrap is done: the API server alone decides.
		if !s.guest.API {
			return false, "the API server in the guest does not answer"
		}
		return true, "the API server in the guest answers"
	case s.guest.Kubelet && !s.bootstraps():
		return true, "the kubelet in the guest is healthy"
	case s.guest.Bootstrap != contract.BootstrapSucceeded:
		return false, fmt.Sprintf("bootstrapping is %s", s.guest.Bootstrap)
	default:
		return false, "the kubelet in the guest is not healthy"
	}
}

// bootstraps says whether a worker's kubelet counts for nothing yet. A guest that is reset within seconds of kubeadm's end has lost the mark of success and says for ever that it failed, or of Ignition's that
// it runs; its kubelet, which only kubeadm can have given credentials, knows better. Whether it got through is for the pod's readiness gate, which wants the Node ready.
func (s *State) bootstraps() bool {
	return s.guest.Bootstrap == contract.BootstrapRunning && s.format != contract.FormatIgnition
}

// Status is everything at once.
func (s *State) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := Status{Phase: string(s.phase), Since: s.since, Heard: s.heard}
	if !s.heard.IsZero() {
		g := s.guest
		// Logs are for those who may read the pod's log.
		g.BootstrapLog = ""
		status.Guest = &g
	}
	_, status.Live = s.live()
	_, status.Ready = s.ready()
	return status
}
