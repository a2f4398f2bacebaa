package roll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// atATime is for how many webhooks, and for how many kinds of objects, an API server is asked at the same time: it has others to answer.
const atATime = 8

// callee is a Service that the API server calls when it is asked for something.
type callee struct {
	namespace, name string
	port            int32
}

func (c callee) String() string { return fmt.Sprintf("%s/%s:%d", c.namespace, c.name, c.port) }

// path is where the API server leads to the Service itself; whatever answers there is not asked for anything a webhook does.
func (c callee) path() string {
	return fmt.Sprintf("/api/v1/namespaces/%s/services/https:%s:%d/proxy/", c.namespace, c.name, c.port)
}

// compareCallbacks waits until every webhook that the old API server reaches is reached by the new one: objects that a webhook must see are refused by a server that does not reach it, and
// nothing else shows it. Those that not even the old one reaches, and those outside of the cluster, are named and not waited for.
func (c *Roller) compareCallbacks(ctx context.Context, s *servers) error {
	var callees []callee
	var outside []string
	err := s.patiently(ctx, func(ctx context.Context) (err error) {
		callees, outside, err = s.before.callbacks(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("looking for webhooks: %w", err)
	}
	var awaited, silent []callee
	err = s.patiently(ctx, func(ctx context.Context) (err error) {
		awaited, silent, err = s.before.reached(ctx, callees)
		return err
	})
	if err != nil {
		return fmt.Errorf("asking the old API server for webhooks: %w", err)
	}
	missing := awaited
	err = c.poll(ctx, func(ctx context.Context) (string, error) {
		_, still, err := s.after.reached(ctx, missing)
		if err != nil || len(still) == 0 {
			return "", err
		}
		missing = still
		return "the new API server to reach the webhooks behind the Services " + services(still), nil
	})
	if err != nil {
		return err
	}
	if len(awaited) > 0 {
		s.note("both API servers reach the webhooks %s", services(awaited))
	}
	if left := slices.Concat(serviceNames(silent), outside); len(left) > 0 {
		s.note("webhooks that were not compared, because the old API server does not reach them either, or they are outside of the cluster: %s", strings.Join(left, ", "))
	}
	return nil
}

func serviceNames(of []callee) []string {
	out := make([]string, 0, len(of))
	for _, one := range of {
		out = append(out, one.String())
	}
	return out
}

func services(of []callee) string { return strings.Join(serviceNames(of), ", ") }

// callbacks are the Services of admission webhooks and of conversions, and the addresses of those that are no Services; both sorted.
func (s *server) callbacks(ctx context.Context) (callees []callee, outside []string, err error) {
	add := func(to *admissionv1.WebhookClientConfig) {
		switch {
		case to.Service != nil:
			callees = append(callees, callee{to.Service.Namespace, to.Service.Name, ptr.Deref(to.Service.Port, 443)})
		case to.URL != nil:
			outside = append(outside, whereTo(*to.URL))
		}
	}
	validating, err := s.clients.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	for i := range validating.Items {
		for n := range validating.Items[i].Webhooks {
			add(&validating.Items[i].Webhooks[n].ClientConfig)
		}
	}
	mutating, err := s.clients.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	for i := range mutating.Items {
		for n := range mutating.Items[i].Webhooks {
			add(&mutating.Items[i].Webhooks[n].ClientConfig)
		}
	}
	definitions, err := s.extensions.ApiextensionsV1().CustomResourceDefinitions().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	for i := range definitions.Items {
		if conversion := definitions.Items[i].Spec.Conversion; conversion != nil && conversion.Webhook != nil && conversion.Webhook.ClientConfig != nil {
			to := admissionv1.WebhookClientConfig{URL: conversion.Webhook.ClientConfig.URL}
			if service := conversion.Webhook.ClientConfig.Service; service != nil {
				to.Service = &admissionv1.ServiceReference{Namespace: service.Namespace, Name: service.Name, Port: service.Port}
			}
			add(&to)
		}
	}
	slices.SortFunc(callees, func(a, b callee) int { return strings.Compare(a.String(), b.String()) })
	slices.Sort(outside)
	return slices.Compact(callees), slices.Compact(outside), nil
}

// whereTo is where an address leads; what follows may be nobody's to see.
func whereTo(address string) string {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Host == "" {
		return "an address that is none"
	}
	return parsed.Host
}

// reached asks the API server for several Services, some at a time: one that swallows connections keeps it for as long as it dials. It tells which it reaches and which not, in the order
// asked.
func (s *server) reached(ctx context.Context, callees []callee) (reached, silent []callee, err error) {
	answers := make([]bool, len(callees))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atATime)
	for i, one := range callees {
		group.Go(func() (err error) {
			if answers[i], err = s.reaches(ctx, one); err != nil {
				return fmt.Errorf("webhook %s: %w", one, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	for i, one := range callees {
		if answers[i] {
			reached = append(reached, one)
		} else {
			silent = append(silent, one)
		}
	}
	return reached, silent, nil
}

// longestCallee is how long a webhook may take to answer. The API server waits for what it forwards as long as who asks it, and one that takes a connection and says nothing must
// not hold up a takeover in which etcd needs both of two members. Webhooks themselves are given 30 seconds at most, by default ten.
const longestCallee = 15 * time.Second

// reaches tells whether the API server gets any answer from a Service. Its own word for none is 503, and 502 or 504 from what lies in between (Kubernetes,
// staging/src/k8s.io/apimachinery/pkg/util/proxy); what a webhook says to a request that is none for it, most often 400, 404 or 405, is an answer. A Service that is not there is not reached.
func (s *server) reaches(ctx context.Context, one callee) (bool, error) {
	if _, err := s.clients.CoreV1().Services(one.namespace).Get(ctx, one.name, metav1.GetOptions{}); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	asking, cancel := context.WithTimeout(ctx, cmp.Or(s.callee, longestCallee))
	defer cancel()
	err := s.clients.CoreV1().RESTClient().Get().AbsPath(one.path()).Do(asking).Error()
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return true, nil
	case asking.Err() != nil && ctx.Err() == nil:
		return false, nil
	case !errors.As(err, &status):
		return false, err // The API server itself gave no answer.
	}
	// The API server's own word names what it is about: who may not ask, or a Service that nobody stands behind.
	if about := status.Status().Details; about != nil && (about.Kind == "services" || about.Kind == "endpoints") {
		if apierrors.IsForbidden(err) {
			return false, err
		}
		return false, nil
	}
	return !slices.Contains([]int32{http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout}, status.Status().Code), nil
}
