package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node/api"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/container"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/logs"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/pods"
)

const (
	streamIdle     = 4 * time.Hour
	streamCreation = 30 * time.Second
	headerTimeout  = 30 * time.Second
)

func portOf(l net.Listener) int32 {
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		return int32(a.Port) //nolint:gosec // A port fits.
	}
	return 0
}

// serve answers the API server: logs, exec and health. Who may ask is decided by the client certificate alone.
func serve(ctx context.Context, opts *Options, manager *pods.Manager) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok")) // The client sees that it is missing.
	})
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", logHandler(opts, manager))
	mux.Handle("/", api.PodHandler(api.PodHandlerConfig{
		RunInContainer: func(ctx context.Context, namespace, pod, name string, command []string, attach api.AttachIO) error {
			return manager.Exec(ctx, namespace, pod, name, command, streams(ctx, attach))
		},
		GetPodsFromKubernetes: nil,
		StreamIdleTimeout:     streamIdle,
		StreamCreationTimeout: streamCreation,
	}, false))
	// No HTTP/2: streams for exec are made by upgrading a connection.
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, TLSConfig: opts.TLS, TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}}
	go func() {
		<-ctx.Done()
		_ = server.Close() // The process ends.
	}()
	err := server.ServeTLS(opts.Listener, "", "")
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving logs and exec: %w", err)
}

func streams(ctx context.Context, attach api.AttachIO) container.ExecIO {
	s := container.ExecIO{Stdin: attach.Stdin(), Terminal: attach.TTY()}
	if out := attach.Stdout(); out != nil {
		s.Stdout = out
	}
	if out := attach.Stderr(); out != nil {
		s.Stderr = out
	}
	if attach.TTY() {
		sizes := make(chan [2]uint16)
		s.Resize = sizes
		go func() {
			for {
				select {
				case size := <-attach.Resize():
					select {
					case sizes <- [2]uint16{size.Width, size.Height}:
					case <-ctx.Done():
						return
					}
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return s
}

func logHandler(opts *Options, manager *pods.Manager) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		previous := q.Get("previous") == "true"
		read, err := readOptions(q, opts.Clock.Now())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		namespace, pod, name := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
		if err := manager.HasLogs(namespace, pod, name, previous); err != nil {
			code := http.StatusInternalServerError
			if errors.Is(err, pods.ErrNotFound) {
				code = http.StatusBadRequest
			}
			http.Error(w, err.Error(), code)
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		out := &flusher{w: w, control: http.NewResponseController(w)}
		if err := out.control.Flush(); err != nil {
			opts.Log.WithError(err).Debug("a reader of logs went away")
			return
		}
		if err := manager.Logs(r.Context(), namespace, pod, name, previous, read, out); err != nil {
			opts.Log.WithError(err).Debug("a log was not served to its end")
		}
	}
}

// flusher sends every line at once.
type flusher struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// Write is io.Writer's.
func (f *flusher) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = f.control.Flush()
	}
	return n, err
}

func readOptions(q url.Values, now time.Time) (logs.ReadOptions, error) {
	o := logs.ReadOptions{Follow: q.Get("follow") == "true", Timestamps: q.Get("timestamps") == "true"}
	var seconds *int64
	for name, target := range map[string]**int64{"tailLines": &o.Tail, "limitBytes": &o.LimitBytes, "sinceSeconds": &seconds} {
		if text := q.Get(name); text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil || n < 0 {
				return o, fmt.Errorf("%s: %q is not a number of at least 0", name, text)
			}
			*target = &n
		}
	}
	if seconds != nil {
		o.Since = now.Add(-time.Duration(*seconds) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return o, fmt.Errorf("sinceTime: %w", err)
		}
		o.Since = t
	}
	return o, nil
}
