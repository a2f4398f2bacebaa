package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// Paths of the questions.
const (
	PathLive   = "/healthz"
	PathReady  = "/readyz"
	PathStatus = "/status"
)

const (
	// askTime is shorter than the timeout of a probe, so that the probe says why it fails.
	askTime        = 3 * time.Second
	maxAnswerBytes = 64 << 10
)

// Handler answers the questions: 200 for yes and 503 for no, with the reason as text.
func Handler(s *State) http.Handler {
	mux := http.NewServeMux()
	answer := func(judge func() (bool, string)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			ok, why := judge()
			if !ok {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_, _ = fmt.Fprintln(w, why)
		}
	}
	mux.HandleFunc(PathLive, answer(s.Live))
	mux.HandleFunc(PathReady, answer(s.Ready))
	mux.HandleFunc(PathStatus, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.Status())
	})
	return mux
}

// Server is the handler on a socket.
type Server struct {
	inner    *http.Server
	listener net.Listener
}

// Listen makes the socket. One that an earlier launcher left is replaced.
func Listen(socket string, s *State) (*Server, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing the probes' socket of an earlier start: %w", err)
	}
	listener, err := net.Listen("unix", socket) //nolint:noctx // listening does not wait
	if err != nil {
		return nil, fmt.Errorf("making the probes' socket: %w", err)
	}
	return &Server{inner: &http.Server{Handler: Handler(s), ReadHeaderTimeout: askTime}, listener: listener}, nil
}

// Serve answers until the context ends.
func (s *Server) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.inner.Close() })
	defer stop()
	if err := s.inner.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("answering probes: %w", err)
	}
	return nil
}

// Ask puts a question to the launcher behind a socket. An error means that nobody answered.
func Ask(ctx context.Context, socket, path string) (ok bool, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://launcher"+path, http.NoBody)
	if err != nil {
		return false, "", fmt.Errorf("asking the launcher: %w", err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return false, "", fmt.Errorf("asking the launcher: %w", err)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return false, "", fmt.Errorf("reading the launcher's answer: %w", err)
	}
	return response.StatusCode == http.StatusOK, string(body), nil
}
