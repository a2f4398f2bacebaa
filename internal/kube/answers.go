package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
)

// Answers asks an API server for its version by a connection of its own, which is closed again: whether the way there leads anywhere now.
func Answers(ctx context.Context, config *rest.Config) error {
	_, err := ask(ctx, config, "version")
	return err
}

// AnswersFromEtcd asks an API server for an object that every cluster has, as etcd has it now: without a majority of its members, etcd answers such a question as little as it takes
// a write. The API server's own memory is asked only where a request names a resource version (k8s.io/apiserver, pkg/storage/cacher/cacher.go, Get).
func AnswersFromEtcd(ctx context.Context, config *rest.Config) error {
	_, err := ask(ctx, config, "api/v1/namespaces/kube-system")
	return err
}

// AnswersByService has an API server ask one of the addresses behind the Service by which pods find it: they are what a packet to the Service's cluster IP is sent to. The API server asks
// without credentials, so a refusal is an answer as well; one that says that it could not get there is not.
func AnswersByService(ctx context.Context, config *rest.Config) error {
	var refused *refusal
	_, err := ask(ctx, config, "api/v1/namespaces/default/services/https:kubernetes:https/proxy/version")
	if errors.As(err, &refused) && refused.code < http.StatusInternalServerError {
		return nil
	}
	return err
}

// refusal is an answer other than the one that was asked for.
type refusal struct {
	code         int
	host, status string
}

func (r *refusal) Error() string { return fmt.Sprintf("asking %s: it answers %s", r.host, r.status) }

// ask returns the header of an answer.
func ask(ctx context.Context, config *rest.Config, path string) (http.Header, error) {
	config = rest.CopyConfig(config)
	secure, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("preparing to ask %s: %w", config.Host, err)
	}
	transport, err := rest.HTTPWrappersForConfig(config, &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, DisableKeepAlives: true, DialContext: config.Dial})
	if err != nil {
		return nil, fmt.Errorf("preparing to ask %s: %w", config.Host, err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("reading the address %s: %w", config.Host, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(path).String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", config.Host, err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", config.Host, err)
	}
	_, err = io.Copy(io.Discard, response.Body)
	if err = failure.Join(err, response.Body.Close()); err != nil {
		return nil, fmt.Errorf("asking %s: %w", config.Host, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, &refusal{code: response.StatusCode, host: config.Host, status: response.Status}
	}
	return response.Header, nil
}

// TimeOf is an API server's clock, to the second, as the Date of an answer has it.
func TimeOf(ctx context.Context, config *rest.Config) (time.Time, error) {
	header, err := ask(ctx, config, "version")
	if err != nil {
		return time.Time{}, err
	}
	at, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return time.Time{}, fmt.Errorf("asking %s for the time: %w", config.Host, err)
	}
	return at, nil
}
