// Command lab-guard runs children that end when its standard input does.
//
// It reads commands as JSON lines on stdin and writes events as JSON lines on
// stdout. It is compiled from this single file, see the package guard.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// grace is what children get between SIGTERM and SIGKILL when the starter is
// gone. Their data is thrown away, so politeness is only for their own children.
const grace = 500 * time.Millisecond

// command is one line on stdin.
type command struct {
	Op     string   `json:"op"`
	Name   string   `json:"name,omitempty"`
	Argv   []string `json:"argv,omitempty"`
	Env    []string `json:"env,omitempty"`
	Dir    string   `json:"dir,omitempty"`
	Log    string   `json:"log,omitempty"`
	Signal int      `json:"signal,omitempty"`
	Path   string   `json:"path,omitempty"`
}

// event is one line on stdout.
type event struct {
	Event string `json:"event"`
	Name  string `json:"name"`
	PID   int    `json:"pid,omitempty"`
	Text  string `json:"text,omitempty"`
}

type exit struct {
	name string
	pid  int
	text string
}

type guard struct {
	children map[string]int
	remove   []string
	exits    chan exit
	events   *json.Encoder
}

func main() {
	// Children are forked from this thread and die with it (Pdeathsig), so it
	// must live as long as the process: the main goroutine stays on it.
	runtime.LockOSThread()
	// The starter's end of stdout may be gone already when the last events are
	// written. That must not end the guard before it cleaned up.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP, syscall.SIGINT)
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)

	g := &guard{children: map[string]int{}, exits: make(chan exit), events: json.NewEncoder(os.Stdout)}
	commands := make(chan command)
	go read(commands)

loop:
	for {
		select {
		case c, ok := <-commands:
			if !ok {
				break loop
			}
			g.handle(c)
		case x := <-g.exits:
			g.exited(x)
		case <-term:
			break loop
		}
	}
	g.end()
}

// read feeds commands and closes the channel when the starter is gone.
func read(commands chan<- command) {
	defer close(commands)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 0, 64*1024), 4*1024*1024)
	for in.Scan() {
		var c command
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			return // Nobody speaks to us like that: treat it as a lost starter.
		}
		commands <- c
	}
}

func (g *guard) handle(c command) {
	switch c.Op {
	case "start":
		pid, err := g.start(c)
		if err != nil {
			g.tell(event{Event: "failed", Name: c.Name, Text: err.Error()})
			return
		}
		g.tell(event{Event: "started", Name: c.Name, PID: pid})
	case "signal":
		if pid, ok := g.children[c.Name]; ok {
			// The whole group: a component may have children of its own.
			_ = syscall.Kill(-pid, syscall.Signal(c.Signal))
		}
	case "remove":
		g.remove = append(g.remove, c.Path)
	}
}

func (g *guard) start(c command) (int, error) {
	if _, ok := g.children[c.Name]; ok {
		return 0, errors.New("already running")
	}
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close()                             //nolint:errcheck // The child has its own descriptor.
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...) //nolint:noctx // Running what the starter names is the purpose.
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = c.Env, c.Dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	g.children[c.Name] = cmd.Process.Pid
	go func() {
		_ = cmd.Wait() // The state tells more than the error.
		g.exits <- exit{name: c.Name, pid: cmd.Process.Pid, text: cmd.ProcessState.String()}
	}()
	return cmd.Process.Pid, nil
}

func (g *guard) exited(x exit) {
	delete(g.children, x.name)
	// What the child itself started goes with it.
	_ = syscall.Kill(-x.pid, syscall.SIGKILL)
	g.tell(event{Event: "exited", Name: x.name, PID: x.pid, Text: x.text})
}

func (g *guard) tell(e event) {
	_ = g.events.Encode(e) //nolint:errchkjson // Without a reader there is nobody to tell.
}

// end ends the children and removes what was to be removed, in this order:
// a dying etcd still writes into its directory.
func (g *guard) end() {
	g.signalAll(syscall.SIGTERM)
	deadline := time.After(grace)
	for len(g.children) > 0 {
		select {
		case x := <-g.exits:
			g.exited(x)
		case <-deadline:
			g.signalAll(syscall.SIGKILL)
			deadline = nil
		}
	}
	for _, path := range g.remove {
		_ = os.RemoveAll(path)
	}
}

func (g *guard) signalAll(s syscall.Signal) {
	for _, pid := range g.children {
		_ = syscall.Kill(-pid, s)
	}
}
