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
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	address = ":8080"
	timeout = 30 * time.Second
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
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("reading the host name: %w", err)
	}
	server := &http.Server{
		Addr: address, ReadHeaderTimeout: timeout,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintln(w, name)
		}),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err := <-failed:
		return fmt.Errorf("serving on %s: %w", address, err)
	case <-ctx.Done():
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
