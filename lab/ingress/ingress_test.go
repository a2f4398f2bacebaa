package ingress_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	testclock "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/ingress"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

const (
	soon  = 20 * time.Second
	often = 10 * time.Millisecond
)

// world is an ingress with its cluster and certificates.
type world struct {
	t       *testing.T
	client  *fake.Clientset
	routes  *ingress.Routes
	server  *ingress.Server
	clock   *testclock.FakeClock
	address string
	ca      *pki.Authority
	stop    context.CancelFunc
	ended   chan error
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	ca, err := pki.NewAuthority("test", time.Now())
	require.NoError(t, err)
	log := logrus.New()
	log.SetOutput(t.Output())
	w := &world{t: t, ca: ca, client: fake.NewClientset(objects...), clock: testclock.NewFakeClock(time.Now()), ended: make(chan error, 1)}
	factory := informers.NewSharedInformerFactory(w.client, 0)
	w.routes, err = ingress.NewRoutes(factory, "lab")
	require.NoError(t, err)
	w.server = &ingress.Server{Finder: w.routes, Log: log, Clock: w.clock, Drain: time.Minute}
	require.NoError(t, w.routes.OnEndpoints(w.server.Review))
	publisher, err := ingress.NewPublisher(w.client, w.routes, "10.100.0.2", log)
	require.NoError(t, err)

	factory.Start(t.Context().Done())
	require.True(t, cache.WaitForCacheSync(t.Context().Done(), w.routes.Synced))
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w.address = listener.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	go publisher.Run(ctx)
	go func() { w.ended <- w.server.Serve(ctx, listener) }()
	return w
}

// backend is a TLS server that says its name.
func (w *world) backend(name string, hosts ...string) (ip string, port int32) {
	w.t.Helper()
	pair, err := w.ca.Issue(pki.Names{CommonName: name, DNS: hosts})
	require.NoError(w.t, err)
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	require.NoError(w.t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(rw, name, " ", r.TLS.ServerName)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	w.t.Cleanup(server.Close)
	host, portText, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(w.t, err)
	number, err := strconv.ParseInt(portText, 10, 32)
	require.NoError(w.t, err)
	return host, int32(number)
}

func (w *world) dial(host string) (*tls.Conn, error) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.ca.CertPEM())
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: pool, ServerName: host, MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(w.t.Context(), "tcp", w.address)
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

// ask sends a request over a connection and returns the answer.
func ask(conn net.Conn) (string, error) {
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		return "", err
	}
	raw, err := io.ReadAll(conn)
	return string(raw), err
}

func (w *world) get(host string) (string, error) {
	conn, err := w.dial(host)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // The answer has been read.
	return ask(conn)
}

func (w *world) create(objects ...any) {
	w.t.Helper()
	var err error
	for _, o := range objects {
		switch x := o.(type) {
		case *networkingv1.Ingress:
			_, err = w.client.NetworkingV1().Ingresses(x.Namespace).Create(w.t.Context(), x, metav1.CreateOptions{})
		case *corev1.Service:
			_, err = w.client.CoreV1().Services(x.Namespace).Create(w.t.Context(), x, metav1.CreateOptions{})
		case *discoveryv1.EndpointSlice:
			_, err = w.client.DiscoveryV1().EndpointSlices(x.Namespace).Create(w.t.Context(), x, metav1.CreateOptions{})
		}
		require.NoError(w.t, err)
	}
}

func ingressFor(name, class, host string) *networkingv1.Ingress {
	return &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "org", Name: name},
		Spec: networkingv1.IngressSpec{
			IngressClassName: new(class),
			Rules: []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
				Paths: []networkingv1.HTTPIngressPath{{Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
					Name: name, Port: networkingv1.ServiceBackendPort{Number: 6443},
				}}}},
			}}}},
		},
	}
}

func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "org", Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "metrics", Port: 1}, {Name: "api", Port: 6443}}},
	}
}

type endpoint struct {
	ip    string
	ready bool
}

func endpoints(service, slice string, port int32, all ...endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "org", Name: slice, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("metrics"), Port: new(int32(1))}, {Name: new("api"), Port: new(port)}},
	}
	for _, e := range all {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{e.ip}, Conditions: discoveryv1.EndpointConditions{Ready: new(e.ready)},
		})
	}
	return s
}

// eventually asks until the answer contains a text: informers take a moment.
func (w *world) eventually(host, want string) {
	w.t.Helper()
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		answer, err := w.get(host)
		require.NoError(c, err)
		assert.Contains(c, answer, want)
	}, soon, often)
}

func TestNamesLeadToTheirBackends(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ipA, portA := w.backend("a", "api.a.test")
	ipB, portB := w.backend("b", "x.b.test", "y.b.test")
	w.create(
		ingressFor("a", "lab", "API.a.test"), service("a"), endpoints("a", "a-1", portA, endpoint{ipA, true}),
		ingressFor("b", "lab", "*.b.test"), service("b"), endpoints("b", "b-1", portB, endpoint{ipB, true}),
		ingressFor("foreign", "nginx", "foreign.test"), service("foreign"), endpoints("foreign", "f-1", portA, endpoint{ipA, true}),
	)

	w.eventually("api.a.test", "a api.a.test")
	w.eventually("x.b.test", "b x.b.test")
	w.eventually("y.b.test", "b y.b.test")
	for _, host := range []string{"foreign.test", "unknown.test", "z.y.b.test"} {
		_, err := w.get(host)
		require.ErrorContains(t, err, "unrecognized name", host)
	}
}

func TestOnlyReadyEndpointsAreUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good, port := w.backend("good", "api.a.test")
	w.create(
		ingressFor("a", "lab", "api.a.test"), service("a"),
		// 127.0.0.9 would refuse, and be tried half of the time if it were a candidate.
		endpoints("a", "a-1", port, endpoint{good, true}, endpoint{"127.0.0.9", false}),
	)
	w.eventually("api.a.test", "good")
	backends, err := w.routes.Backends("api.a.test")
	require.NoError(t, err)
	require.Len(t, backends, 1)
	assert.Equal(t, net.JoinHostPort(good, strconv.Itoa(int(port))), backends[0].Address)

	_, err = w.client.DiscoveryV1().EndpointSlices("org").Update(t.Context(), endpoints("a", "a-1", port, endpoint{good, false}), metav1.UpdateOptions{})
	require.NoError(t, err)

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := w.routes.Backends("api.a.test")
		require.ErrorIs(c, err, ingress.ErrNoEndpoints)
	}, soon, often)
	_, err = w.get("api.a.test")
	require.ErrorContains(t, err, "internal error")
}

func TestDeadEndpointIsSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good, port := w.backend("good", "api.a.test")
	w.create(
		ingressFor("a", "lab", "api.a.test"), service("a"),
		// Ready, but nobody listens there.
		endpoints("a", "a-1", port, endpoint{good, true}, endpoint{"127.0.0.9", true}),
	)
	w.eventually("api.a.test", "good")
	for range 20 {
		answer, err := w.get("api.a.test")
		require.NoError(t, err)
		assert.Contains(t, answer, "good")
	}
}

// connected opens a connection that is through to its backend.
func (w *world) connected(host string) *tls.Conn {
	w.t.Helper()
	var conn *tls.Conn
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		var err error
		conn, err = w.dial(host)
		require.NoError(c, err)
	}, soon, often)
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestOpenConnectionsDrainWhenTheServerEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ip, port := w.backend("a", "api.a.test")
	w.create(ingressFor("a", "lab", "api.a.test"), service("a"), endpoints("a", "a-1", port, endpoint{ip, true}))
	finishing, lingering := w.connected("api.a.test"), w.connected("api.a.test")

	w.stop()
	require.Eventually(t, w.clock.HasWaiters, soon, often)
	_, err := w.dial("api.a.test")
	require.Error(t, err, "nobody new is let in")
	answer, err := ask(finishing)
	require.NoError(t, err)
	assert.Contains(t, answer, "a api.a.test", "who is in may finish")
	select {
	case err := <-w.ended:
		require.Fail(t, "the server ended with an open connection", err)
	default:
	}

	w.clock.Step(time.Minute)
	require.NoError(t, <-w.ended)
	answer, _ = ask(lingering)
	assert.Empty(t, answer)
}

func TestConnectionsToRemovedEndpointsAreCutAfterAWhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ip, port := w.backend("a", "api.a.test")
	w.create(ingressFor("a", "lab", "api.a.test"), service("a"), endpoints("a", "a-1", port, endpoint{ip, true}))
	conn := w.connected("api.a.test")
	slices := w.client.DiscoveryV1().EndpointSlices("org")

	_, err := slices.Update(t.Context(), endpoints("a", "a-1", port, endpoint{ip, false}), metav1.UpdateOptions{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := w.routes.Backends("api.a.test")
		require.ErrorIs(c, err, ingress.ErrNoEndpoints)
	}, soon, often)
	assert.False(t, w.clock.HasWaiters(), "an endpoint that is not ready keeps its connections")

	_, err = slices.Update(t.Context(), endpoints("a", "a-1", port), metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, w.clock.HasWaiters, soon, often)
	assert.Equal(t, 1, w.server.Open())
	w.clock.Step(time.Minute)
	require.Eventually(t, func() bool { return w.server.Open() == 0 }, soon, often)
	answer, _ := ask(conn)
	assert.Empty(t, answer)
}

func TestAddressIsPublishedForOurClassOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ingressFor("before", "lab", "before.test"))
	w.create(ingressFor("ours", "lab", "a.test"), ingressFor("theirs", "nginx", "b.test"))
	status := func(name string) []networkingv1.IngressLoadBalancerIngress {
		i, err := w.client.NetworkingV1().Ingresses("org").Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		return i.Status.LoadBalancer.Ingress
	}

	want := []networkingv1.IngressLoadBalancerIngress{{IP: "10.100.0.2"}}
	for _, name := range []string{"before", "ours"} {
		require.Eventually(t, func() bool { return assert.ObjectsAreEqual(want, status(name)) }, soon, often, name)
	}
	assert.Empty(t, status("theirs"))
}

func TestWhoDoesNotSpeakTLSIsDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", w.address)
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // The test is over.
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
	require.NoError(t, err)
	answer, err := io.ReadAll(conn)
	assert.Empty(t, answer)
	_ = err // Reset or end: both are fine.
}
