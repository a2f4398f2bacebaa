package roll

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

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
	var before, silent []string
	awaited := callees[:0]
	for _, one := range callees {
		reached := false
		if err := s.patiently(ctx, func(ctx context.Context) (err error) { reached, err = s.before.reaches(ctx, one); return err }); err != nil {
			return fmt.Errorf("asking the old API server for webhook %s: %w", one, err)
		}
		if !reached {
			silent = append(silent, one.String())
			continue
		}
		awaited, before = append(awaited, one), append(before, one.String())
	}
	for _, one := range awaited {
		err := c.poll(ctx, func(ctx context.Context) (string, error) {
			reached, err := s.after.reaches(ctx, one)
			if err != nil || reached {
				return "", err
			}
			return "the new API server to reach the webhook behind Service " + one.String(), nil
		})
		if err != nil {
			return err
		}
	}
	if len(before) > 0 {
		s.note("both API servers reach the webhooks %s", strings.Join(before, ", "))
	}
	if left := slices.Concat(silent, outside); len(left) > 0 {
		s.note("webhooks that were not compared, because the old API server does not reach them either, or they are outside of the cluster: %s", strings.Join(left, ", "))
	}
	return nil
}

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

// reaches tells whether the API server gets any answer from a Service. Its own word for none is 503, and 502 or 504 from what lies in between (Kubernetes,
// staging/src/k8s.io/apimachinery/pkg/util/proxy); what a webhook says to a request that is none for it, most often 400, 404 or 405, is an answer. A Service that is not there is not reached.
func (s *server) reaches(ctx context.Context, one callee) (bool, error) {
	if _, err := s.clients.CoreV1().Services(one.namespace).Get(ctx, one.name, metav1.GetOptions{}); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	err := s.clients.CoreV1().RESTClient().Get().AbsPath(one.path()).Do(ctx).Error()
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return true, nil
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
