// Command echo is the lab's workload: a web server that answers with its host name, and the client to ask it.
//
//	echo             serve on :8080
//	echo get URL     print what a server answers
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	address = ":8080"
	timeout = 30 * time.Second
	// lameDuck is how long a server goes on that was told to end. It is told when everybody else is, and where processors are emulated seconds go by until no kube-proxy leads to it any more. A real
	// workload that must lose no request when it is evicted does the same, mostly by a preStop hook.
	lameDuck = 10 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0:
		return serve(ctx)
	case len(args) == 2 && args[0] == "get":
		return get(ctx, args[1])
	default:
		return errors.New("usage: echo [get URL]")
	}
}

func serve(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serving on %s: %w", address, err)
	}
	return serveOn(ctx, listener, lameDuck)
}

// serveOn serves until ctx ends, and for so much longer.
func serveOn(ctx context.Context, listener net.Listener, longer time.Duration) error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("reading the host name: %w", err)
	}
	server := &http.Server{
		ReadHeaderTimeout: timeout,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintln(w, name)
		}),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	over := make(chan struct{})
	go func() {
		defer close(over)
		<-ctx.Done()
		<-time.After(longer)
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	case <-over:
		return server.Shutdown(context.WithoutCancel(ctx))
	}
}

func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody) //nolint:gosec // asking what the user names is what it is for
	if err != nil {
		return fmt.Errorf("asking %s: %w", url, err)
	}
	resp, err := http.DefaultClient.Do(req) //nolint:gosec // asking what the user names is what it is for
	if err != nil {
		return fmt.Errorf("asking %s: %w", url, err)
	}
	defer resp.Body.Close() //nolint:errcheck // Only read.
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("asking %s: status %s", url, resp.Status)
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}
