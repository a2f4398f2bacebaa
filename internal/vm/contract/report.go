package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// ReportPrefix starts every line of the launcher's log that is a Report. All other lines are for people.
const ReportPrefix = "capk-report "

// MaxReportBytes bounds one line. The tail of a guest's log is cut to fit.
const MaxReportBytes = 16 << 10

// ReportKind says what a report is about.
type ReportKind string

// The kinds of reports.
const (
	// ReportStarted: QEMU runs guest code. Address, Accelerator and Milliseconds (since the container started) are set.
	ReportStarted ReportKind = "started"
	// ReportGuest: the guest's own state changed: bootstrap, kubelet or API server.
	ReportGuest ReportKind = "guest"
	// ReportStopped: QEMU ended. Code is the launcher's exit code.
	ReportStopped ReportKind = "stopped"
	// ReportFailed: the launcher could not go on. Code and Message say why; the same text is the container's termination message.
	ReportFailed ReportKind = "failed"
)

// Report is one line of the launcher's log, for the controller.
type Report struct {
	Kind ReportKind `json:"kind"`
	Time time.Time  `json:"time"`

	Address      string      `json:"address,omitempty"`
	Accelerator  Accelerator `json:"accelerator,omitempty"`
	Milliseconds int64       `json:"milliseconds,omitempty"`

	Guest *Guest `json:"guest,omitempty"`

	Code    int    `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// BootstrapState says how far the bootstrap data got.
type BootstrapState string

// The states of bootstrapping. They only move forward, also across reboots of the guest.
const (
	BootstrapRunning   BootstrapState = "running"
	BootstrapSucceeded BootstrapState = "succeeded"
	BootstrapFailed    BootstrapState = "failed"
)

// Guest is what the agent sees inside the guest.
type Guest struct {
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID    string         `json:"bootID"`
	Bootstrap BootstrapState `json:"bootstrap"`
	// BootstrapMessage says what failed, and BootstrapLog is the end of the log, with credentials taken out.
	BootstrapMessage string `json:"bootstrapMessage,omitempty"`
	BootstrapLog     string `json:"bootstrapLog,omitempty"`
	// Kubelet: its health endpoint on localhost answers with success.
	Kubelet bool `json:"kubelet"`
	// API: the API server on this machine answers with success; always false on workers.
	API bool `json:"api"`
	// Problems are what setting up the guest could not do, for example mount a share.
	Problems []string `json:"problems,omitempty"`
	// NotMounted are places whose disk or share is missing. Nothing can be written there, and the machine is not ready.
	NotMounted []string `json:"notMounted,omitempty"`
}

// Beat is one line from agent to launcher over virtio-serial, every few seconds.
type Beat struct {
	// Version of this format: 1.
	Version int   `json:"v"`
	Guest   Guest `json:"guest"`
}

// BeatVersion is the version of the format of a Beat.
const BeatVersion = 1

// AgentPort is the name of the virtio-serial port: /dev/virtio-ports/AgentPort in the guest.
const AgentPort = "infrastructure.cluster.x-k8s.io.agent"

// Line writes the report as one line without a newline.
func (r *Report) Line() (string, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encoding a report of kind %s: %w", r.Kind, err)
	}
	return ReportPrefix + string(raw), nil
}

// ParseReport reads a line of the launcher's log. Lines that are no report give false; so do damaged ones, because a log may
// be cut anywhere.
func ParseReport(line []byte) (*Report, bool) {
	raw, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte(ReportPrefix))
	if !ok || len(raw) > 2*MaxReportBytes {
		return nil, false
	}
	r := &Report{}
	if err := json.Unmarshal(raw, r); err != nil || r.Kind == "" {
		return nil, false
	}
	return r, true
}
