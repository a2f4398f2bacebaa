package roll

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// answering plays the few things of an API server that the search for webhooks asks. Status codes of Services by namespace/name:port; without one there is no Service.
func answering(t *testing.T, services map[string]func() int) *server {
	t.Helper()
	config := func(clients ...admissionv1.WebhookClientConfig) (out []admissionv1.ValidatingWebhook) {
		for _, c := range clients {
			out = append(out, admissionv1.ValidatingWebhook{ClientConfig: c})
		}
		return out
	}
	to := func(namespace, name string, port *int32) admissionv1.WebhookClientConfig {
		return admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: namespace, Name: name, Port: port}}
	}
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/validatingwebhookconfigurations"):
			answer = admissionv1.ValidatingWebhookConfigurationList{Items: []admissionv1.ValidatingWebhookConfiguration{
				{Webhooks: config(to("shop", "guard", nil), to("shop", "guard", new(int32(443))), admissionv1.WebhookClientConfig{URL: new("https://policy.example.com/v1?token=SECRET")})},
			}}
		case strings.HasSuffix(path, "/mutatingwebhookconfigurations"):
			answer = admissionv1.MutatingWebhookConfigurationList{Items: []admissionv1.MutatingWebhookConfiguration{{Webhooks: []admissionv1.MutatingWebhook{{ClientConfig: to("shop", "gone", nil)}, {ClientConfig: to("shop", "empty", nil)}}}}}
		case strings.HasSuffix(path, "/customresourcedefinitions"):
			answer = apiextensionsv1.CustomResourceDefinitionList{Items: []apiextensionsv1.CustomResourceDefinition{{}, {Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Conversion: &apiextensionsv1.CustomResourceConversion{Webhook: &apiextensionsv1.WebhookConversion{ClientConfig: &apiextensionsv1.WebhookClientConfig{
					Service: &apiextensionsv1.ServiceReference{Namespace: "backup", Name: "converter", Port: new(int32(9443))},
				}}},
			}}}}
		case strings.HasSuffix(path, "/proxy/"):
			parts := strings.Split(strings.TrimPrefix(path, "/api/v1/namespaces/"), "/")
			if parts[2] == "https:empty:443" {
				w.WriteHeader(http.StatusNotFound)
				answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Details: &metav1.StatusDetails{Kind: "endpoints", Name: "empty"}}
				break
			}
			// What a webhook says is most often no JSON, and no status of Kubernetes.
			http.Error(w, "404 page not found", services[parts[0]+"/"+strings.TrimPrefix(parts[2], "https:")]())
			return
		default:
			parts := strings.Split(strings.TrimPrefix(path, "/api/v1/namespaces/"), "/")
			found := false
			for name := range services {
				found = found || strings.HasPrefix(name, parts[0]+"/"+parts[2]+":")
			}
			if !found {
				w.WriteHeader(http.StatusNotFound)
				answer = metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
				break
			}
			answer = corev1.Service{}
		}
		assert.NoError(t, json.NewEncoder(w).Encode(answer))
	}))
	t.Cleanup(s.Close)
	made, err := newServerClients(&rest.Config{Host: s.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: pemOf(s.Certificate())}})
	require.NoError(t, err)
	return made
}

// TestTheNewServerHasToReachWebhooks that the old one reaches, and no others.
func TestTheNewServerHasToReachWebhooks(t *testing.T) {
	t.Parallel()
	always := func(code int) func() int { return func() int { return code } }
	before := answering(t, map[string]func() int{"shop/empty:443": nil, "shop/guard:443": always(http.StatusNotFound), "backup/converter:9443": always(http.StatusServiceUnavailable)})
	for name, test := range map[string]struct {
		silent int64 // so many questions
		says   string
	}{
		"at once":       {0, ""},
		"after a while": {5, ""},
		"never":         {1 << 40, "waiting for the new API server to reach the webhooks behind the Services shop/guard:443"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			after := answering(t, map[string]func() int{"shop/guard:443": func() int {
				if asked.Add(1) <= test.silent {
					return http.StatusServiceUnavailable
				}
				return http.StatusBadRequest
			}})
			c := with(t)
			c.Clock, c.Patience = leaping{clocktesting.NewFakeClock(time.Unix(0, 0))}, 5*time.Second
			if test.says == "" {
				c.Patience = time.Minute
			}
			var notes []string
			s := &servers{
				before: before, after: after, note: func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) },
				patiently: func(ctx context.Context, do func(context.Context) error) error { return do(ctx) },
			}
			err := c.compareCallbacks(t.Context(), s)
			if test.says != "" {
				require.ErrorIs(t, err, kube.ErrNotInTime)
				require.ErrorContains(t, err, test.says)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.silent+1, asked.Load())
			assert.Equal(t, []string{
				"both API servers reach the webhooks shop/guard:443",
				"webhooks that were not compared, because the old API server does not reach them either, or they are outside of the cluster: backup/converter:9443, shop/empty:443, shop/gone:443, policy.example.com",
			}, notes)
		})
	}
}

// TestAWebhookThatNeverAnswersIsNotReached: the API server would wait for it as long as who asks, in the stretch in which etcd needs both of two members.
func TestAWebhookThatNeverAnswersIsNotReached(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	s := answering(t, map[string]func() int{"shop/silent:443": func() int { <-ended; return http.StatusOK }, "shop/quick:443": func() int { return http.StatusOK }})
	t.Cleanup(func() { close(ended) })
	s.callee = 5 * time.Second // The quick one has to answer in it.
	silent, quick := callee{"shop", "silent", 443}, callee{"shop", "quick", 443}
	reached, missing, err := s.reached(t.Context(), []callee{silent, quick})
	require.NoError(t, err)
	assert.Equal(t, []callee{quick}, reached)
	assert.Equal(t, []callee{silent}, missing)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.reaches(over, silent)
	require.ErrorIs(t, err, context.Canceled, "who asks has gone, and nothing is known")
}

// TestWebhooksAreAskedTogether: one that swallows connections must not keep the others waiting.
func TestWebhooksAreAskedTogether(t *testing.T) {
	t.Parallel()
	other := make(chan struct{})
	s := answering(t, map[string]func() int{
		"shop/first:443":  func() int { <-other; return http.StatusServiceUnavailable },
		"shop/second:443": func() int { close(other); return http.StatusBadRequest },
	})
	first, second := callee{"shop", "first", 443}, callee{"shop", "second", 443}
	reached, silent, err := s.reached(t.Context(), []callee{first, second})
	require.NoError(t, err)
	assert.Equal(t, []callee{second}, reached)
	assert.Equal(t, []callee{first}, silent)
}
