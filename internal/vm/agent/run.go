package agent

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const (
	// Every is the time between two beats.
	Every = 5 * time.Second
	// askLimit bounds a question to kubelet or API server: a guest under load answers late, and a beat must not wait for it.
	askLimit = 3 * time.Second
	// answerBytes of an answer are read: a server that is not ready says why in a line for each of its checks.
	answerBytes = 64 << 10
	// tailBytes of a failed bootstrap's log are reported.
	tailBytes = 4 << 10
	// logBytes of it are read, to have that much left when cloud-init's own words are taken out.
	logBytes = 256 << 10

	// sentinel is written by Cluster API's bootstrap data when kubeadm succeeded. It lies in /run and is gone after a reboot.
	sentinel = "/run/cluster-api/bootstrap-success.complete"
	// outcomeFile remembers the outcome across reboots.
	outcomeFile = stateDir + "/bootstrap"
	// cloudInitResult exists when cloud-init is through with everything, for good or bad.
	cloudInitResult = "/run/cloud-init/result.json"
	cloudInitLog    = "/var/log/cloud-init-output.log"
	// cloudInitBegan exists from before cloud-init runs the bootstrap data's commands, and keeps it from ever running them again (cloud-init, helpers.py, FileSemaphores).
	cloudInitBegan = "/var/lib/cloud/instance/sem/config_scripts_user"
	// beganFile remembers in which boot of the guest that was.
	beganFile = stateDir + "/bootstrap-boot"
	bootID    = "/proc/sys/kernel/random/boot_id"
	// ignitionUnit runs kubeadm on guests that were configured by Ignition.
	ignitionUnit = "kubeadm.service"
)

// Agent watches a guest from the inside.
type Agent struct {
	Sys    *System
	Config *contract.GuestConfig
	Clock  clock.WithTicker
	Log    logrus.FieldLogger
	// Ask makes requests to this machine's own kubelet and API server.
	Ask *http.Client
	// KubeletURL and APIURL are where they answer; the API server's is empty on workers.
	KubeletURL, APIURL string

	redact *redactor
	final  *outcome
}

// outcome is how the bootstrap data ended.
type outcome struct {
	State   contract.BootstrapState `json:"state"`
	Message string                  `json:"message,omitempty"`
	Log     string                  `json:"log,omitempty"`
}

// New makes an agent for this guest from what Setup left behind.
func New(sys *System, c clock.WithTicker, log logrus.FieldLogger) (*Agent, error) {
	config, err := readConfig(sys.path(configFile))
	if err != nil {
		return nil, err
	}
	a := &Agent{
		Sys: sys, Config: config, Clock: c, Log: log,
		Ask: &http.Client{
			Timeout: askLimit,
			Transport: &http.Transport{
				// A handshake with the API server every few seconds was four percent of what an emulated guest did (docs/lab.md).
				IdleConnTimeout: 4 * Every,
				// Only ever asks 127.0.0.1, and sends nothing: all it learns is whether somebody answers.
				TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, //nolint:gosec // see above
			},
		},
		KubeletURL: "http://127.0.0.1:10248/healthz",
	}
	if config.APIPort > 0 {
		a.APIURL = "https://127.0.0.1:" + strconv.Itoa(int(config.APIPort)) + "/readyz"
	}
	return a, nil
}

// Run writes a beat every few seconds until the context ends. The port is opened by the caller, who opens it again after an error.
func (a *Agent) Run(ctx context.Context, port io.Writer) error {
	ticker := a.Clock.NewTicker(Every)
	defer ticker.Stop()
	for {
		line, err := json.Marshal(contract.Beat{Version: contract.BeatVersion, Guest: a.Look(ctx)})
		if err != nil {
			return fmt.Errorf("encoding a beat: %w", err)
		}
		if _, err := port.Write(append(line, '\n')); err != nil {
			return fmt.Errorf("writing a beat: %w", err)
		}
		select {
		case <-ctx.Done():
			// A guest that is restarted by its last bootstrap command loses the mark in /run, and with it the one proof that kubeadm succeeded.
			a.succeeded()
			return nil
		case <-ticker.C():
		}
	}
}

// Look gathers the guest's state once.
func (a *Agent) Look(ctx context.Context) contract.Guest {
	o := a.bootstrap(ctx)
	g := contract.Guest{Bootstrap: o.State, BootstrapMessage: o.Message, BootstrapLog: o.Log}
	if id, err := a.Sys.read(bootID); err == nil {
		g.BootID = strings.TrimSpace(id)
	}
	g.Kubelet = a.answers(ctx, a.KubeletURL, false)
	if a.APIURL != "" {
		g.API = a.answers(ctx, a.APIURL, true)
	}
	if text, err := a.Sys.read(problemsFile); err == nil {
		left := undone{}
		if err := json.Unmarshal([]byte(text), &left); err != nil {
			left.Problems = []string{"the list of problems cannot be read: " + err.Error()}
		}
		g.Problems = left.Problems
		g.NotMounted = slices.DeleteFunc(left.NotMounted, func(path string) bool { return !missing(ctx, a.Sys, path) }) // People may have mended some since.
	}
	return g
}

// answers asks a health endpoint. Anonymous requests may be forbidden, and a server that says so serves.
func (a *Agent) answers(ctx context.Context, url string, refusalCounts bool) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	response, err := a.Ask.Do(request)
	if err != nil {
		return false
	}
	// What is not read keeps the connection from being used again.
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, answerBytes))
	_ = response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return true
	case http.StatusUnauthorized, http.StatusForbidden:
		return refusalCounts
	default:
		return false
	}
}

// bootstrap finds out what became of the bootstrap data. Success and failure are final: a machine is bootstrapped once.
func (a *Agent) bootstrap(ctx context.Context) outcome {
	if a.final != nil && a.final.State == contract.BootstrapSucceeded {
		return *a.final
	}
	if text, err := a.Sys.read(outcomeFile); err == nil {
		o := outcome{}
		if err := json.Unmarshal([]byte(text), &o); err == nil && o.State == contract.BootstrapSucceeded {
			a.final = &o
			return o
		}
	}
	if a.succeeded() {
		return outcome{State: contract.BootstrapSucceeded}
	}
	if o, ended := a.ended(ctx); ended {
		a.remember(o)
		return o
	}
	if o, broken := a.brokenOff(); broken {
		a.remember(o)
		return o
	}
	// A reboot before the end loses cloud-init's result in /run. What was known stays known.
	if text, err := a.Sys.read(outcomeFile); err == nil {
		o := outcome{}
		if err := json.Unmarshal([]byte(text), &o); err == nil && o.State != "" {
			return o
		}
	}
	return outcome{State: contract.BootstrapRunning}
}

// succeeded says whether kubeadm's success is marked, and keeps it for the time after a reboot.
func (a *Agent) succeeded() bool {
	if !a.Sys.exists(sentinel) {
		return false
	}
	a.remember(outcome{State: contract.BootstrapSucceeded})
	return true
}

// brokenOff says whether the guest was restarted while cloud-init ran the bootstrap data's commands. It never runs them again, and what they have started may come up all the same: a member of etcd
// whose machine will not get any further must not be taken for a good one in the minutes until cloud-init has ended once more.
func (a *Agent) brokenOff() (outcome, bool) {
	if a.Config.Format == contract.FormatIgnition || !a.Sys.exists(cloudInitBegan) {
		return outcome{}, false
	}
	now, err := a.Sys.read(bootID)
	if err != nil {
		return outcome{}, false
	}
	began, err := a.Sys.read(beganFile)
	if err != nil {
		if err := a.Sys.write(beganFile, now, 0o600); err != nil {
			a.Log.WithError(err).Warn("in which boot the bootstrap data ran cannot be kept")
		}
		return outcome{}, false
	}
	if began == now {
		return outcome{}, false
	}
	return a.ofCloudInit("the machine was restarted while its bootstrap data ran, and cloud-init runs them only once"), true
}

// ended says whether the bootstrap data ran to an end without success.
func (a *Agent) ended(ctx context.Context) (outcome, bool) {
	if a.Config.Format == contract.FormatIgnition {
		state, err := a.Sys.Run(ctx, "systemctl", "is-failed", ignitionUnit)
		if err != nil || strings.TrimSpace(state) != "failed" {
			return outcome{}, false // is-failed exits with 1 when the unit has not failed
		}
		log, err := a.Sys.Run(ctx, "journalctl", "-u", ignitionUnit, "-n", "100", "--no-pager", "-o", "cat")
		if err != nil {
			log = err.Error()
		}
		return a.failure(ignitionUnit+" failed", log), true
	}
	if !a.Sys.exists(cloudInitResult) {
		return outcome{}, false
	}
	return a.ofCloudInit("cloud-init ended, but kubeadm did not succeed"), true
}

// ofCloudInit is a failure with what the commands said that cloud-init ran.
func (a *Agent) ofCloudInit(message string) outcome {
	log, err := tailOf(a.Sys.path(cloudInitLog), logBytes)
	if err != nil {
		log = err.Error()
	}
	return a.failure(message, ofCommands(log))
}

// ofCommands leaves out what cloud-init says about itself. It follows the output of the commands that failed and is longer than they are.
func ofCommands(log string) string {
	own := regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ - \w+\.py\[(DEBUG|INFO)\]: `)
	var kept []string
	for line := range strings.SplitSeq(log, "\n") {
		if !own.MatchString(line) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

func (a *Agent) failure(message, log string) outcome {
	if a.redact == nil {
		a.redact = newRedactor()
	}
	log = a.redact.clean(log)
	if len(log) > tailBytes {
		log = strings.ToValidUTF8(log[len(log)-tailBytes:], "")
	}
	return outcome{State: contract.BootstrapFailed, Message: message, Log: log}
}

// remember keeps an outcome for the time after a reboot. Without it the next look finds out again.
func (a *Agent) remember(o outcome) {
	if o.State == contract.BootstrapSucceeded {
		a.final = &o
	}
	raw, err := json.Marshal(o)
	if err == nil {
		err = a.Sys.write(outcomeFile, string(raw), 0o600)
	}
	if err != nil {
		a.Log.WithError(err).Warn("the outcome of bootstrapping cannot be kept")
	}
}

// tailOf reads the end of a file, which may be large.
func tailOf(path string, limit int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("opening the log: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("looking at the log: %w", err)
	}
	if info.Size() > limit {
		if _, err := f.Seek(-limit, io.SeekEnd); err != nil {
			return "", fmt.Errorf("going to the log's end: %w", err)
		}
	}
	raw, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return "", fmt.Errorf("reading the log: %w", err)
	}
	return string(raw), nil
}

// OpenPort opens the channel to the launcher. Writing blocks while nobody reads on the other side, which is what a beat should do.
func OpenPort(sys *System) (io.WriteCloser, error) {
	path := sys.path("/dev/virtio-ports", contract.AgentPort)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("this machine has no port %s: it was not started by this provider's launcher", contract.AgentPort)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the port to the launcher: %w", err)
	}
	return f, nil
}
