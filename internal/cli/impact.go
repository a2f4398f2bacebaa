package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/impact"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// What the API server is asked, whatever people want to know besides.
const (
	apiQuestion  = "API server, by its name"
	etcdQuestion = "API server, for what only a majority of etcd can tell"
)

// ownQuestions are asked of the cluster whose API servers config leads to.
func ownQuestions(config *rest.Config) ([]impact.Question, error) {
	behind, err := kube.NewAsker(config)
	if err != nil {
		return nil, err
	}
	return []impact.Question{
		{Name: apiQuestion, Ask: func(ctx context.Context) error { return kube.Answers(ctx, config) }},
		{Name: etcdQuestion, Ask: behind.FromEtcd},
	}, nil
}

// probeFlags say what a run measures.
type probeFlags struct {
	workloads []string
	every     time.Duration
}

func (f *probeFlags) addTo(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.workloads, "probe", nil, "a workload that is asked while the run goes on, NAME=URL; repeatable")
	flags.DurationVar(&f.every, "probe-every", time.Second, "pause between two questions to the API server and each --probe; 0 measures nothing")
}

// questions are those that the flags name.
func (f *probeFlags) questions() ([]impact.Question, error) {
	if f.every < 0 {
		return nil, usage("--probe-every 1s", "--probe-every cannot be negative")
	}
	var all []impact.Question
	for _, said := range f.workloads {
		name, address, found := strings.Cut(said, "=")
		where, err := url.Parse(address)
		switch {
		case !found || name == "" || err != nil || where.Host == "" || (where.Scheme != "http" && where.Scheme != "https"):
			return nil, usage("--probe shop=https://shop.example.com/health", "--probe is %q, and has to be NAME=URL", said)
		case where.User != nil:
			return nil, usage("--probe shop=https://shop.example.com/health", "--probe %s: an address with a password would be seen in the list of processes", name)
		}
		all = append(all, impact.Question{Name: name, Ask: func(ctx context.Context) error { return answers(ctx, where.String()) }})
	}
	if err := impact.Names(append([]impact.Question{{Name: apiQuestion}, {Name: etcdQuestion}}, all...)); err != nil {
		return nil, usage("", "--probe: %s", err)
	}
	return all, nil
}

// answers asks an address by a connection of its own. What is asked is not part of the error: it may carry what is nobody's business.
func answers(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return errors.New("the address cannot be asked")
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		if outer := (*url.Error)(nil); errors.As(err, &outer) {
			err = outer.Err
		}
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	if err = failure.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("it answers %s", response.Status)
	}
	return nil
}

// measure begins to measure what users of the cluster notice; nil when nothing is to be measured.
func (s *session) measure(ctx context.Context, o runOptions, u *undertaking) (*impact.Measurement, error) {
	if o.probe.every == 0 {
		return nil, nil //nolint:nilnil // people want it so
	}
	questions, err := o.probe.questions()
	if err != nil {
		return nil, err
	}
	config, err := s.insideConfig(ctx, u)
	if err != nil {
		return nil, err
	}
	inside := kube.Prepared(config, s.kubeOptions())
	own, err := ownQuestions(inside)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(inside)
	if err != nil {
		return nil, fmt.Errorf("preparing to watch cluster %s: %w", u.id, err)
	}
	var leaving []string
	for _, node := range u.found.cluster.Nodes {
		if node.Pod != nil {
			leaving = append(leaving, node.Pod.Object.Name)
		}
	}
	return impact.Meter{
		Clock: s.app.Clock, Every: o.probe.every, Questions: append(own, questions...), Client: client, Leaving: leaving,
	}.Start(ctx), nil
}
