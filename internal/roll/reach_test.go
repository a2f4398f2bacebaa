package roll

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// published is the Ingress of the legacy API, with what a management cluster may have set.
func published(change func(*networkingv1.Ingress)) legacy.Doc[networkingv1.Ingress] {
	object := networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{
		Namespace: "al9qy", Name: "api", Labels: map[string]string{"giantswarm.io/cluster": "al9qy"},
		Annotations: map[string]string{passThrough: "true", "external-dns.alpha.kubernetes.io/hostname": "api.al9qy.test"},
	}}
	change(&object)
	return legacy.Doc[networkingv1.Ingress]{Object: object}
}

// TestTheNewServerIsAskedByItsMachinesName, until nobody else has the old name.
func TestTheNewServerIsAskedByItsMachinesName(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		like        []legacy.Doc[networkingv1.Ingress]
		class       string
		annotations map[string]string
	}{
		"as nobody does":             {nil, "", map[string]string{passThrough: "true"}},
		"of no class":                {[]legacy.Doc[networkingv1.Ingress]{published(func(*networkingv1.Ingress) {})}, "", map[string]string{passThrough: "true"}},
		"of a class":                 {[]legacy.Doc[networkingv1.Ingress]{published(func(i *networkingv1.Ingress) { i.Spec.IngressClassName = new("nginx") })}, "nginx", map[string]string{passThrough: "true"}},
		"of a class, as it was said": {[]legacy.Doc[networkingv1.Ingress]{published(func(i *networkingv1.Ingress) { i.Annotations[ingressClass] = "nginx" })}, "", map[string]string{passThrough: "true", ingressClass: "nginx"}},
		"of somebody else":           {[]legacy.Doc[networkingv1.Ingress]{published(func(i *networkingv1.Ingress) { i.Labels, i.Annotations[ingressClass] = nil, "theirs" })}, "", map[string]string{passThrough: "true"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := with(t, firstNew("")...)
			c.Picture.Ingresses = test.like
			c.Inside = &rest.Config{Host: vacant(t)}
			asked := ""
			c.PodDialer = func(config *rest.Config) DialPod {
				return func(context.Context, string, string, int) (net.Conn, error) {
					asked = config.Host + " " + config.ServerName
					return nil, errors.New("connecting to port 2379 of pod kube-system/etcd-x: unable to upgrade connection: Unauthorized")
				}
			}
			dials := func() string {
				_, err := c.dialPod(t.Context(), "etcd-x", 2379)
				require.ErrorContains(t, err, "pod kube-system/etcd-x")
				const hint = "an API server without --kubelet-client-certificate, as the legacy one, has none; Ingress org-acme/migration-al9qy-api, which leads to the new one, is not there"
				assert.Equal(t, strings.HasSuffix(asked, " "), strings.Contains(err.Error(), hint), err.Error())
				return asked
			}

			assert.Equal(t, c.Inside.Host+" ", dials())

			for range 2 { // A run that goes on does it again.
				require.NoError(t, c.Reach(t.Context()))
				require.NoError(t, c.VerifyReach(t.Context()))
			}
			made, err := c.must(t.Context(), ingressKind(), "migration-al9qy-api")
			require.NoError(t, err)
			assert.Equal(t, test.annotations, made.GetAnnotations())
			assert.Equal(t, test.class, text(made, "spec", "ingressClassName"))
			require.Len(t, made.GetOwnerReferences(), 1)
			assert.Equal(t, "Machine", made.GetOwnerReferences()[0].Kind)
			service, err := c.must(t.Context(), coreKind("Service"), "migration-al9qy-api")
			require.NoError(t, err)
			assert.Equal(t, map[string]any{
				"type": "ClusterIP", "selector": map[string]any{"infrastructure.cluster.x-k8s.io/machine": "al9qy-cp-x"}, "publishNotReadyAddresses": true,
				"ports": []any{map[string]any{"name": "api", "protocol": "TCP", "port": int64(443), "targetPort": int64(443)}},
			}, service.Object["spec"])
			config, err := c.newServerConfig(t.Context())
			require.NoError(t, err)
			assert.Equal(t, "al9qy-cp-x", config.ServerName)
			assert.Equal(t, c.Inside.Host, config.Host)
			assert.Empty(t, c.Inside.ServerName, "the old one is still asked")
			assert.Equal(t, c.Inside.Host+" al9qy-cp-x", dials())

			for _, kind := range []schema.GroupVersionKind{ingressKind(), coreKind("Service")} {
				o, err := c.must(t.Context(), kind, "migration-al9qy-api")
				require.NoError(t, err)
				o.SetUID(types.UID(kind.Kind)) // The fake server gives none to what is applied.
				require.NoError(t, c.Management.Client.Update(t.Context(), o))
			}
			for range 2 {
				require.NoError(t, c.Unreach(t.Context()))
				require.NoError(t, c.VerifyUnreached(t.Context()))
			}
			assert.Equal(t, c.Inside.Host+" ", dials())

			config, err = c.newServerConfig(t.Context())
			require.NoError(t, err, "what somebody has removed is made anew")
			assert.Equal(t, "al9qy-cp-x", config.ServerName, "and the old server is not taken for the new one")
		})
	}
}

// TestWhatIsSomebodyElsesStays: neither is it changed, nor removed.
func TestWhatIsSomebodyElsesStays(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"{apiVersion: networking.k8s.io/v1, kind: Ingress, ", "{apiVersion: v1, kind: Service, "} {
		c := with(t, append(firstNew(""), kind+"metadata: {namespace: org-acme, name: migration-al9qy-api, uid: u}}")...)
		c.Inside = &rest.Config{}
		require.ErrorContains(t, c.Reach(t.Context()), "/org-acme/migration-al9qy-api is somebody else's; the migration needs the name: remove it and run again, or take the phase back with migrate rollback al9qy --to adopt")
		require.NoError(t, c.Unreach(t.Context()), "it holds up no rollback")
		require.NoError(t, c.VerifyUnreached(t.Context()))
		of := ingressKind()
		if strings.Contains(kind, "Service") {
			of = coreKind("Service")
		}
		_, err := c.must(t.Context(), of, "migration-al9qy-api")
		require.NoError(t, err, "it stays")
	}
}

// TestAnotherMachinesNameIsNoName: the Ingress of a machine that is gone leads nowhere.
func TestAnotherMachinesNameIsNoName(t *testing.T) {
	t.Parallel()
	c := with(t, append(firstNew(""), `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: org-acme, name: migration-al9qy-api, labels: {"migration.giantswarm.io/cluster": al9qy}}
spec: {rules: [{host: al9qy-cp-w}]}
`)...)
	require.EqualError(t, c.VerifyReach(t.Context()), `the new API server cannot be asked by its own name: Ingress org-acme/migration-al9qy-api names "al9qy-cp-w" and not the machine al9qy-cp-x`)
}

// TestServersThatProveNothingAreNotTold apart: nothing is made for them.
func TestServersThatProveNothingAreNotToldApart(t *testing.T) {
	t.Parallel()
	c := with(t, firstNew("")...)
	c.Inside = &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	require.ErrorIs(t, c.Reach(t.Context()), ErrNoWay)
	require.NoError(t, c.VerifyUnreached(t.Context()))
}

// TestAWayThatDoesNotGoByNamesIsRefused before the machine boots: it leads to the legacy server whatever it is asked for.
func TestAWayThatDoesNotGoByNamesIsRefused(t *testing.T) {
	t.Parallel()
	c := with(t, firstNew("")...)
	server := serve(t, nil)
	c.Inside = &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: pemOf(server.Certificate())}}
	require.NoError(t, c.Reach(t.Context()))
	err := c.VerifyReach(t.Context())
	require.ErrorIs(t, err, ErrNoWay)
	require.ErrorContains(t, err, "whoever answers at "+server.URL+" is not it")

	// An ingress that has not heard of the name yet shows a certificate of its own.
	c = with(t, firstNew("")...)
	c.Inside = &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: other(t)}}
	require.NoError(t, c.Reach(t.Context()))
	require.NoError(t, c.VerifyReach(t.Context()))
}

// selfSigned is the certificate of somebody who has no authority but itself.
func selfSigned(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, DNSNames: []string{name}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// other is the certificate of an authority that has nothing to do with a test's server.
func other(t *testing.T) []byte {
	t.Helper()
	return pemOf(selfSigned(t, "nobody").Leaf)
}

// serve answers 404 under the name example.com.
func serve(t *testing.T, config *tls.Config) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS, s.Config.ErrorLog = config, log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// vacant is an ingress that has nobody for a name at the moment: crypto/tls tells the client of an internal error.
func vacant(t *testing.T) string {
	t.Helper()
	return serve(t, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, errors.New("nobody is there") }}).URL
}

// TestWhoeverElseAnswersIsTold from a server that is only not there: by its certificate, or by an ingress that has nobody.
func TestWhoeverElseAnswersIsTold(t *testing.T) {
	t.Parallel()
	ask := func(url, name string, trusted []byte) error {
		_, err := newServer(&rest.Config{Host: url, Timeout: time.Minute, TLSClientConfig: rest.TLSClientConfig{ServerName: name, CAData: trusted}})
		return err
	}
	server := serve(t, nil)
	assert.True(t, misled(ask(server.URL, "al9qy-cp-x", pemOf(server.Certificate()))), "the legacy server")
	assert.True(t, misled(ask(server.URL, "al9qy-cp-x", other(t))), "the ingress itself")
	assert.True(t, misled(ask(server.URL, "example.com", other(t))), "another cluster's server, or the ingress by that very name")
	assert.True(t, misled(ask(unknowing(t), "al9qy-cp-x", nil)), "an ingress that does not know the name")
	err := ask(vacant(t), "example.com", nil)
	assert.False(t, misled(err), "an ingress that has nobody for it: %v", err)
	assert.True(t, kube.Transient(err), "which is waited for: %v", err)
	assert.False(t, misled(ask(server.URL, "example.com", pemOf(server.Certificate()))), "it answers, if only that it has nothing")
	server.Close()
	assert.False(t, misled(ask(server.URL, "example.com", pemOf(server.Certificate()))), "nobody is there")

	c := with(t, firstNew("")...)
	c.Inside = &rest.Config{Host: "https://api.al9qy.test"}
	require.EqualError(t, c.elsewhere(errors.New("no")), "the new API server cannot be asked by its own name: whoever answers at https://api.al9qy.test is not it; the way into the workload cluster has to lead "+
		"through the management cluster's ingress, which Ingress org-acme/migration-al9qy-api is for, with TLS passed through and the server's name in it; name such a way with --workload-kubeconfig and run again, or take the phase back with migrate rollback al9qy --to adopt: no")
}

// TestAnIngressMayTakeAMinute to lead to the new API server: until then it shows a certificate of its own.
func TestAnIngressMayTakeAMinute(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		misleads int64 // so many connections
		says     string
	}{
		"and leads at last": {60, ""},
		"and no more":       {61, "the new API server cannot be asked by its own name: whoever answers at"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ingress, api := selfSigned(t, "ingress.local"), selfSigned(t, "al9qy-cp-x")
			var connections atomic.Int64
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, map[string]string{"/api": `{"kind": "APIVersions"}`, "/apis": `{"kind": "APIGroupList", "groups": []}`}[r.URL.Path])
			}))
			s.Config.ErrorLog = log.New(io.Discard, "", 0)
			s.TLS = &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				assert.Equal(t, "al9qy-cp-x", hello.ServerName)
				if connections.Add(1) > test.misleads {
					return &api, nil
				}
				return &ingress, nil
			}}
			s.StartTLS()
			t.Cleanup(s.Close)
			c := with(t)
			clk := leaping{clocktesting.NewFakeClock(time.Unix(0, 0))}
			c.Clock, c.Patience = clk, time.Minute
			c.Inside = &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{CAData: pemOf(api.Leaf)}}
			met := &servers{note: func(string, ...any) {}, before: &server{away: map[string]bool{}}}
			err := c.meet(t.Context(), met, c.byOwnName("al9qy-cp-x"))
			assert.Equal(t, time.Unix(60, 0), clk.Now())
			if test.says != "" {
				require.ErrorIs(t, err, ErrNoWay)
				require.ErrorContains(t, err, test.says)
				return
			}
			require.NoError(t, err)
			assert.NotNil(t, met.after)
		})
	}
}

// leaping never lets anybody wait.
type leaping struct{ *clocktesting.FakeClock }

func (c leaping) NewTimer(d time.Duration) clock.Timer {
	timer := c.FakeClock.NewTimer(d)
	c.Step(d)
	return timer
}

// unknowing is an ingress that says of every name that it does not know it: an alert is level and reason (RFC 8446, 6; RFC 6066, 3).
func unknowing(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096)) // The hello.
			_, _ = conn.Write([]byte{21, 3, 1, 0, 2, 2, 112})
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		assert.NoError(t, listener.Close())
		serving.Wait()
	})
	return "https://" + listener.Addr().String()
}

func pemOf(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
