package pods

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/container"
)

type probeKind string

const (
	startupProbe   probeKind = "Startup"
	livenessProbe  probeKind = "Liveness"
	readinessProbe probeKind = "Readiness"
)

// streak counts equal results in a row.
type streak struct {
	ok    bool
	count int32
}

// outputLimit bounds what a probe's output contributes to an event.
const outputLimit = 1024

// startProbes starts a loop per probe. They end with the container.
func (w *worker) startProbes(ctx context.Context, u *unit, r *run) {
	for kind, p := range map[probeKind]*corev1.Probe{
		startupProbe: u.spec.StartupProbe, livenessProbe: u.spec.LivenessProbe, readinessProbe: u.spec.ReadinessProbe,
	} {
		if p != nil {
			go w.probe(ctx, u, r, kind, p, w.target(u))
		}
	}
}

// target is what probes and hooks reach the container by.
type target struct {
	host      string
	container *corev1.Container
	process   *container.Process
	env       []string
	// dial connects from where the kubelet is: an address of loopback is the host's.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func (w *worker) target(u *unit) target {
	t := target{host: w.address.String(), container: u.spec, process: u.run.process, env: u.run.env, dial: (&net.Dialer{}).DialContext}
	if w.opts.Own != nil {
		t.dial = w.opts.Own.Dial
	}
	return t
}

// probe asks again and again: startup until it succeeds, the others from then on.
func (w *worker) probe(ctx context.Context, u *unit, r *run, kind probeKind, p *corev1.Probe, t target) {
	if !w.pause(ctx, time.Duration(p.InitialDelaySeconds)*time.Second) {
		return
	}
	if kind != startupProbe {
		select {
		case <-r.startup:
		case <-ctx.Done():
			return
		}
	}
	tick := w.opts.Clock.NewTicker(time.Duration(max(p.PeriodSeconds, 1)) * time.Second)
	defer tick.Stop()
	for {
		err := t.ask(ctx, &p.ProbeHandler, time.Duration(max(p.TimeoutSeconds, 1))*time.Second)
		if ctx.Err() != nil {
			return
		}
		w.post(func() { w.probed(ctx, u, r, kind, p, err) })
		if kind == startupProbe && isClosed(r.startup) {
			return
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (w *worker) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := w.opts.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// probed takes in a result. It counts once there were enough of its kind in a row.
func (w *worker) probed(ctx context.Context, u *unit, r *run, kind probeKind, p *corev1.Probe, result error) {
	if u.run != r || r.stopping && kind != readinessProbe {
		return
	}
	ok := result == nil
	s := r.counts[kind]
	if s == nil || s.ok != ok {
		s = &streak{ok: ok}
		r.counts[kind] = s
	}
	s.count++
	if !ok {
		w.containerEvent(u, corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe failed: %s", kind, result))
	}
	threshold := max(p.FailureThreshold, 1)
	if ok {
		threshold = max(p.SuccessThreshold, 1)
	}
	if s.count < threshold {
		return
	}
	switch {
	case kind == readinessProbe:
		u.ready = ok
	case ok && kind == startupProbe:
		w.markStarted(u, r)
	case !ok:
		w.containerEvent(u, corev1.EventTypeNormal, "Killing",
			fmt.Sprintf("Container %s failed %s probe, will be restarted", u.spec.Name, strings.ToLower(string(kind))))
		grace := w.specGrace()
		if p.TerminationGracePeriodSeconds != nil {
			grace = time.Duration(*p.TerminationGracePeriodSeconds) * time.Second
		}
		w.stop(ctx, u, grace)
	}
}

// ask is one try. Probes without a handler known here fail and say so.
func (t target) ask(ctx context.Context, h *corev1.ProbeHandler, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch {
	case h.Exec != nil:
		return t.exec(ctx, h.Exec.Command)
	case h.HTTPGet != nil:
		return t.get(ctx, h.HTTPGet)
	case h.TCPSocket != nil:
		return t.connect(ctx, h.TCPSocket)
	default:
		return errors.New("this kind of probe is not supported by the lab's hosts")
	}
}

func (t target) exec(ctx context.Context, command []string) error {
	if len(command) == 0 {
		return errors.New("no command")
	}
	var out bytes.Buffer
	code, err := t.process.Exec(ctx, command, t.env, container.ExecIO{Stdout: &out, Stderr: &out})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("command timed out")
	case err != nil:
		return err
	case code != 0:
		return errors.New(strings.ToValidUTF8(string(out.Bytes()[:min(out.Len(), outputLimit)]), "?"))
	default:
		return nil
	}
}

func (t target) get(ctx context.Context, h *corev1.HTTPGetAction) error {
	port, err := t.port(h.Port)
	if err != nil {
		return err
	}
	host := h.Host
	if host == "" {
		host = t.host
	}
	path, query, _ := strings.Cut(h.Path, "?")
	u := url.URL{Scheme: strings.ToLower(string(h.Scheme)), Host: net.JoinHostPort(host, port), Path: path, RawQuery: query}
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("making a request: %w", err)
	}
	req.Header.Set("User-Agent", "kube-probe/lab")
	for _, header := range h.HTTPHeaders {
		req.Header.Add(header.Name, header.Value)
		if http.CanonicalHeaderKey(header.Name) == "Host" {
			req.Host = header.Value
		}
	}
	client := http.Client{
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // Probes do not verify, as with a kubelet.
			DisableKeepAlives: true, DialContext: t.dial,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // Only read.
	_, _ = io.CopyN(io.Discard, resp.Body, outputLimit)
	if resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("HTTP probe failed with statuscode: %d", resp.StatusCode)
	}
	return nil
}

func (t target) connect(ctx context.Context, h *corev1.TCPSocketAction) error {
	port, err := t.port(h.Port)
	if err != nil {
		return err
	}
	host := h.Host
	if host == "" {
		host = t.host
	}
	conn, err := t.dial(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return err
	}
	_ = conn.Close() // It was possible to connect.
	return nil
}

// port finds a port by number or by its name in the container.
func (t target) port(p intstr.IntOrString) (string, error) {
	if p.Type == intstr.Int {
		return strconv.Itoa(p.IntValue()), nil
	}
	for _, c := range t.container.Ports {
		if c.Name == p.StrVal {
			return strconv.Itoa(int(c.ContainerPort)), nil
		}
	}
	if _, err := strconv.Atoi(p.StrVal); err == nil {
		return p.StrVal, nil
	}
	return "", fmt.Errorf("the container has no port %q", p.StrVal)
}

// hook runs a lifecycle handler.
func (w *worker) hook(ctx context.Context, t target, h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		return t.exec(ctx, h.Exec.Command)
	case h.HTTPGet != nil:
		return t.get(ctx, h.HTTPGet)
	case h.Sleep != nil:
		w.pause(ctx, time.Duration(h.Sleep.Seconds)*time.Second)
		return nil
	default:
		return nil
	}
}
