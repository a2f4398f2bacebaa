package pod

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
)

const subnetKey = "FLANNEL_SUBNET"

// serve answers at an address of the form http://host:port until ctx ends.
func serve(ctx context.Context, address string, handler http.Handler) error {
	server := &http.Server{Addr: strings.TrimPrefix(address, "http://"), Handler: handler, ReadHeaderTimeout: httpLimit}
	go func() {
		<-ctx.Done()
		_ = server.Close() // The program ends.
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving at %s: %w", address, err)
	}
	return nil
}

// Health says whether a machine can be reached.
type Health struct {
	// EnvFile is the network's environment file.
	EnvFile string
	// CheckAPI also looks at the API server, which masters have.
	CheckAPI bool
	// Patience is for machines without hardware virtualisation: one that does not answer is forgiven for so long, from the moment on at
	// which the real platform would begin to end it. Before that the check is the real one, and after it. An answer is not the end of it: a
	// first API server that is too slow to make its own roles ends itself, and the second one finds them made.
	Patience time.Duration
	Clock    clock.PassiveClock
	// Forgave hears when a machine that does not answer was forgiven, and for how long it has been without an answer in between; nil hears nothing.
	Forgave func(at time.Time, unanswered time.Duration, why error)

	sequence atomic.Uint32

	mu sync.Mutex
	// silent is since when it has been forgiven, zero when the last check had an answer.
	silent time.Time
}

const (
	// livenessDelay is how long a pod's liveness probe waits.
	livenessDelay = 500 * time.Second
	// forgivingLimit is shorter than what the probe waits for an answer, which is as long as the check may take: who is forgiven has to say so
	// in time.
	forgivingLimit = httpLimit / 2
)

// Serve answers on /healthz.
func (h *Health) Serve(ctx context.Context, address string) error {
	start := h.Clock.Now()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		begin := h.Clock.Now()
		forgiven := h.forgiven(begin.Sub(start))
		checked := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(ctx, httpLimit)
			defer cancel()
			err := h.Check(ctx)
			h.keep(begin, err, forgiven)
			checked <- err
		}()
		if forgiven {
			limit, cancel := context.WithTimeout(r.Context(), forgivingLimit)
			defer cancel()
			select {
			case <-checked:
			case <-limit.Done(): // The check goes on, because what is measured is the real one.
			}
		} else if err := <-checked; err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprintln(w, "ok") // The client sees that it is missing.
	})
	return serve(ctx, address, mux)
}

// keep notes for how long there has been no answer, from the beginning of the first check that was forgiven to the end of the last, and tells. Liveness and readiness ask the same, each every
// 35 seconds, so an answer to either of them ends it.
func (h *Health) keep(begin time.Time, err error, forgiven bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil || !forgiven:
		h.silent = time.Time{}
		return
	case h.silent.IsZero() || begin.Before(h.silent):
		h.silent = begin
	}
	if h.Forgave != nil {
		now := h.Clock.Now()
		h.Forgave(now, now.Sub(h.silent), err)
	}
}

func (h *Health) forgiven(age time.Duration) bool {
	return age >= livenessDelay && age < livenessDelay+h.Patience
}

// Check pings the machine, and connects to its kubelet and to its API server. What these answer does not matter.
func (h *Health) Check(ctx context.Context) error {
	bridge, err := Subnet(h.EnvFile)
	if err != nil {
		return err
	}
	machine := bridge.Addr().Next().String()
	if err := ping(ctx, machine, uint16(h.sequence.Add(1))); err != nil { //nolint:gosec // It may wrap.
		return fmt.Errorf("pinging %s: %w", machine, err)
	}
	urls := []string{"http://" + machine + ":10248/healthz"}
	if h.CheckAPI {
		urls = append(urls, "https://"+machine+":443/healthz")
	}
	for _, url := range urls {
		if err := connects(ctx, url); err != nil {
			return err
		}
	}
	return nil
}

// Subnet reads the address of the bridge from an environment file of flannel's.
func Subnet(path string) (netip.Prefix, error) {
	f, err := os.Open(path)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("reading the network's environment: %w", err)
	}
	defer f.Close() //nolint:errcheck // Opened for reading.
	for s := bufio.NewScanner(f); s.Scan(); {
		if value, ok := strings.CutPrefix(s.Text(), subnetKey+"="); ok {
			p, err := netip.ParsePrefix(value)
			if err != nil {
				return p, fmt.Errorf("reading the network's environment: %w", err)
			}
			return p, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("reading the network's environment: %s has no %s", path, subnetKey)
}

func connects(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("asking %s: %w", url, err)
	}
	c := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // As the real one.
	}}
	resp, err := c.Do(req)
	if err != nil {
		return fmt.Errorf("asking %s: %w", url, err)
	}
	return resp.Body.Close()
}

// ping sends one ICMP echo and waits for its answer.
func ping(ctx context.Context, address string, sequence uint16) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "ip4:icmp", address)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // Nothing is buffered.
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	const echo, answer, header = 8, 0, 20
	id := uint16(os.Getpid()) //nolint:gosec // Any number will do.
	packet := make([]byte, 8)
	packet[0] = echo
	binary.BigEndian.PutUint16(packet[4:], id)
	binary.BigEndian.PutUint16(packet[6:], sequence)
	binary.BigEndian.PutUint16(packet[2:], checksum(packet))
	if _, err := conn.Write(packet); err != nil {
		return err
	}
	buffer := make([]byte, 1500)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return err
		}
		reply := buffer[:n]
		if len(reply) >= header && reply[0]>>4 == 4 {
			reply = reply[int(reply[0]&0xf)*4:]
		}
		if len(reply) >= 8 && reply[0] == answer && binary.BigEndian.Uint16(reply[4:]) == id && binary.BigEndian.Uint16(reply[6:]) == sequence {
			return nil
		}
	}
}

func checksum(packet []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(packet); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(packet[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// Deferrer says whether a pod's end has to wait: until its DrainerConfig says that the drain has ended, also while there is none.
type Deferrer struct {
	Client         client.Reader
	Namespace, Pod string
}

// Serve answers on /v1/defer/ and /healthz.
func (d *Deferrer) Serve(ctx context.Context, address string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok") // The client sees that it is missing.
	})
	mux.HandleFunc("GET /v1/defer/", func(w http.ResponseWriter, r *http.Request) {
		wait, err := d.Deferred(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprint(w, wait) // The client sees that it is missing.
	})
	return serve(ctx, address, mux)
}

// Deferred is the answer.
func (d *Deferrer) Deferred(ctx context.Context) (bool, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(desired.GVK(desired.KindDrainerConfig))
	err := d.Client.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: d.Pod}, o)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("looking for the DrainerConfig: %w", err)
	}
	conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	if err != nil {
		return false, fmt.Errorf("reading the DrainerConfig: %w", err)
	}
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && (m["type"] == "Drained" || m["type"] == "Timeout") && m["status"] == "True" {
			return false, nil
		}
	}
	return true, nil
}

// WriteEnv writes the network's environment file.
func WriteEnv(path string, network, bridge netip.Prefix, mtu int) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // As on a host.
		return fmt.Errorf("making the directory of the network's environment: %w", err)
	}
	text := fmt.Sprintf("FLANNEL_NETWORK=%s\n%s=%s\nFLANNEL_MTU=%d\nFLANNEL_IPMASQ=false\n", network, subnetKey, bridge, mtu)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // As on a host.
		return fmt.Errorf("writing the network's environment: %w", err)
	}
	return nil
}
