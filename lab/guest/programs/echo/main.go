// Command echo is the lab's workload: a web server that answers with its host name, and the client to ask it. At /api the server asks the cluster's API by the IP of its Service, as
// clients in a cluster do, over a new connection, and passes on whether there was an answer.
//
//	echo             serve on :8080
//	echo get URL     print what a server answers
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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
	// workload that must lose no request when it is evicted does the same, mostly by a preStop hook. It ends within the 30 s that Kubernetes gives a pod by default.
	lameDuck = 25 * time.Second
	// authority is the file with the cluster's CA that every pod with a ServiceAccount has.
	authority = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
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
	return serveOn(ctx, listener, lameDuck, &api{address: net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")), authority: authority})
}

// routes answer with a name, and at /api with what api says.
func routes(name string, api http.Handler) http.Handler {
	handler := http.NewServeMux()
	handler.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, name) })
	handler.Handle("/api", api)
	handler.Handle("/api/", api) // Else it would be one more path that is always answered.
	return handler
}

// api is the cluster's own, by its Service.
type api struct {
	// address is what the kubelet tells every container of the Service, authority a file with the CA that has signed its certificate.
	address, authority string
}

// ServeHTTP asks for what everybody may know, and answers 502 when there was no answer.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := a.ask(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	_, _ = fmt.Fprintln(w, a.address)
}

func (a *api) ask(ctx context.Context) error {
	ca, err := os.ReadFile(a.authority)
	if err != nil {
		return fmt.Errorf("reading the cluster's CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return fmt.Errorf("reading the cluster's CA: %s holds no certificate", a.authority)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	return fetch(ctx, &http.Client{Transport: transport}, "https://"+a.address+"/version", io.Discard)
}

// serveOn serves until ctx ends, and for so much longer.
func serveOn(ctx context.Context, listener net.Listener, longer time.Duration, api http.Handler) error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("reading the host name: %w", err)
	}
	server := &http.Server{ReadHeaderTimeout: timeout, Handler: routes(name, api)}
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
	return fetch(ctx, http.DefaultClient, url, os.Stdout)
}

// fetch asks once, and writes what is answered.
func fetch(ctx context.Context, client *http.Client, url string, to io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody) //nolint:gosec // asking what the user names is what it is for
	if err != nil {
		return fmt.Errorf("asking %s: %w", url, err)
	}
	resp, err := client.Do(req) //nolint:gosec // asking what the user names is what it is for
	if err != nil {
		return fmt.Errorf("asking %s: %w", url, err)
	}
	defer resp.Body.Close() //nolint:errcheck // Only read.
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("asking %s: status %s", url, resp.Status)
	}
	_, err = io.Copy(to, resp.Body)
	return err
}
