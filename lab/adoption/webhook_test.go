package adoption

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// webhookAddress is a machine of the network that all API servers of the tests are in: they lead to no loopback address.
const webhookAddress = "10.199.64.1"

// addWebhook puts a webhook into the workload cluster that API servers reach, and one that nobody serves; no request is for either of them. It returns how the program names them.
func (x *takeover) addWebhook() (served, silent string) {
	x.Helper()
	listener, err := new(net.ListenConfig).Listen(x.Context(), "tcp", net.JoinHostPort(webhookAddress, "0"))
	require.NoError(x, err)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	require.NoError(x, server.Listener.Close())
	server.Listener = listener
	server.StartTLS()
	x.Cleanup(server.Close)
	_, text, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(x, err)
	port, err := strconv.Atoi(text)
	require.NoError(x, err)

	const namespace = "guards"
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	require.NoError(x, x.inside.Create(x.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	require.NoError(x, x.inside.Create(x.Context(), &corev1.ServiceAccount{ObjectMeta: meta("default")})) // A controller manager would have made it.
	ready := &corev1.Pod{ObjectMeta: meta("guard"), Spec: corev1.PodSpec{
		NodeName: x.o.c.Workers[0], AutomountServiceAccountToken: new(false), Containers: []corev1.Container{{Name: "guard", Image: "any"}},
	}}
	require.NoError(x, x.inside.Create(x.Context(), ready))
	ready.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: webhookAddress, PodIPs: []corev1.PodIP{{IP: webhookAddress}}}
	require.NoError(x, x.inside.Status().Update(x.Context(), ready))
	for _, name := range []string{"guard", "absent"} {
		require.NoError(x, x.inside.Create(x.Context(), &corev1.Service{ObjectMeta: meta(name), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}}))
		require.NoError(x, x.inside.Create(x.Context(), &admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Webhooks: []admissionv1.ValidatingWebhook{{
				Name: name + ".example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionv1.SideEffectClassNone), FailurePolicy: new(admissionv1.Ignore),
				ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: namespace, Name: name}},
				Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create}, Rule: admissionv1.Rule{
					APIGroups: []string{"nobody.example.com"}, APIVersions: []string{"v1"}, Resources: []string{"nothings"},
				}}},
			}},
		}))
	}
	require.NoError(x, x.inside.Create(x.Context(), &corev1.Endpoints{ //nolint:staticcheck // What API servers of the legacy version ask.
		ObjectMeta: meta("guard"),
		Subsets: []corev1.EndpointSubset{{ //nolint:staticcheck // See above.
			Addresses: []corev1.EndpointAddress{{IP: webhookAddress, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: ready.Namespace, Name: ready.Name}}},
			Ports:     []corev1.EndpointPort{{Port: int32(port)}},
		}},
	}))
	return namespace + "/guard:443", namespace + "/absent:443"
}
