package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
)

// StateVersion is the version of the State document.
const StateVersion = 1

// Phase of a lab.
type Phase string

// The phases. A lab that does not exist has no document.
const (
	PhaseStarting Phase = "starting"
	PhaseRunning  Phase = "running"
	PhaseStopping Phase = "stopping"
)

// State describes a running lab.
type State struct {
	Version   int       `json:"version"`
	Phase     Phase     `json:"phase"`
	Dir       string    `json:"dir"`
	PID       int       `json:"pid"`
	GuardPID  int       `json:"guardPID,omitempty"`
	StartedAt time.Time `json:"startedAt"`
	// Keep says that the directory stays when the lab ends.
	Keep       bool   `json:"keep,omitempty"`
	Parts      string `json:"parts,omitempty"`
	URL        string `json:"url,omitempty"`
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Hosts is how many VM hosts the lab has. With any, it is in a network of
	// its own: that of process PID.
	Hosts int `json:"hosts,omitempty"`
	// InsideKubeconfig works in that network.
	InsideKubeconfig string `json:"insideKubeconfig,omitempty"`
	// ServedAfter and ReadyAfter are seconds from the start to a served API
	// and to everything being ready.
	ServedAfter float64        `json:"servedAfterSeconds,omitempty"`
	ReadyAfter  float64        `json:"readyAfterSeconds,omitempty"`
	Components  []mc.Component `json:"components,omitempty"`
	// Ended lists components that are not running any more.
	Ended []string `json:"ended,omitempty"`
	// ControllerManager says whether one runs: loading objects depends on it.
	ControllerManager bool `json:"controllerManager"`
}

// ErrNotRunning says that no lab runs in a directory.
var ErrNotRunning = errors.New("no lab is running")

const stateFile = "state.json"

// DefaultDir is where `lab up` keeps a lab: below $XDG_STATE_HOME.
func DefaultDir() (string, error) {
	base := os.Getenv("XDG_STATE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("finding a place for the lab's state (set XDG_STATE_HOME or use --dir): %w", err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "cluster-api-provider-kvm", "lab"), nil
}

// Read returns the state of the lab in a directory, or ErrNotRunning.
func Read(dir string) (*State, error) {
	running, err := locked(dir)
	if err != nil {
		return nil, err
	}
	if !running {
		return nil, fmt.Errorf("looking at %s: %w", dir, ErrNotRunning)
	}
	s, err := readFile(dir)
	if errors.Is(err, fs.ErrNotExist) {
		// Between taking the lock and the first write, or after the removal.
		return &State{Version: StateVersion, Phase: PhaseStarting, Dir: dir}, nil
	}
	return s, err
}

func readFile(dir string) (*State, error) {
	raw, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, fmt.Errorf("reading the lab's state: %w", err)
	}
	var s State
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("reading the lab's state in %s: %w", dir, err)
	}
	return &s, nil
}

// write replaces the document atomically: readers never see half of one.
func (s *State) write() error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the lab's state: %w", err)
	}
	path := filepath.Join(s.Dir, stateFile)
	if err := os.WriteFile(path+".new", append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the lab's state: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("writing the lab's state: %w", err)
	}
	return nil
}

// locked says whether a supervisor lives in the directory.
func locked(dir string) (bool, error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking at %s: %w", dir, err)
	}
	defer f.Close() //nolint:errcheck // Opened for reading.
	// Shared: two lookers do not see each other as a supervisor.
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking at the lock of %s: %w", dir, err)
	}
	return false, nil
}
