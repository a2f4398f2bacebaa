package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
)

// The tests against real servers are in the lab, package etcdtest.

func clientPair(t *testing.T) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "client"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	raw, err := x509.MarshalECPrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
}

// clientOf is a client of a server that has another name than its address, and that name.
func clientOf(t *testing.T, server *httptest.Server, stall time.Duration) (c *etcd.Client, at string) {
	t.Helper()
	where, err := url.Parse(server.URL)
	require.NoError(t, err)
	cert, key := clientPair(t)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	at = "https://example.com:443"
	c, err = etcd.New(etcd.Options{
		TLS: etcd.TLS{CA: ca, Cert: cert, Key: key}, Dial: new(net.Dialer).DialContext, Endpoints: []etcd.Endpoint{{URL: at, Address: where.Host}}, Stall: stall,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c, at
}

func TestAClientNeedsAllItsParts(t *testing.T) {
	t.Parallel()
	cert, key := clientPair(t)
	good := etcd.TLS{CA: cert, Cert: cert, Key: key}
	dial := new(net.Dialer).DialContext
	for want, opts := range map[string]etcd.Options{
		"no endpoint is known":       {TLS: good, Dial: dial},
		"no dialer was given":        {TLS: good, Endpoints: []etcd.Endpoint{{URL: "https://a:443"}}},
		"must be https://HOST:PORT":  {TLS: good, Dial: dial, Endpoints: []etcd.Endpoint{{URL: "http://a:443"}}},
		"reading the URL":            {TLS: good, Dial: dial, Endpoints: []etcd.Endpoint{{URL: "https://a:b:c"}}},
		"there is no certificate":    {TLS: etcd.TLS{Cert: cert, Key: key}, Dial: dial, Endpoints: []etcd.Endpoint{{URL: "https://a:443"}}},
		"reading the client certifi": {TLS: etcd.TLS{CA: cert, Cert: cert}, Dial: dial, Endpoints: []etcd.Endpoint{{URL: "https://b"}, {URL: "https://a:443"}}},
		"at a: two endpoints have t": {TLS: good, Dial: dial, Endpoints: []etcd.Endpoint{{Name: "a", URL: "https://h"}, {Name: "a", URL: "https://h"}}},
	} {
		_, err := etcd.New(opts)
		require.ErrorContains(t, err, "preparing a client for etcd")
		require.ErrorContains(t, err, want)
	}
	client, err := etcd.New(etcd.Options{TLS: good, Dial: dial, Endpoints: []etcd.Endpoint{{URL: "https://a"}, {URL: "https://b:2379"}}})
	require.NoError(t, err)
	assert.Equal(t, []string{"https://a", "https://b:2379"}, client.Endpoints())
	_, err = client.Status(t.Context(), "https://c")
	require.EqualError(t, err, "asking etcd at https://c for its status: this endpoint was not given")
	require.NoError(t, client.Close())
}

func TestMetricsAreReadOnceAndInFull(t *testing.T) {
	t.Parallel()
	answer := func(w http.ResponseWriter) { _, _ = w.Write([]byte("up 1\n")) }
	connections := map[string]bool{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "GET /metrics", r.Method+" "+r.URL.Path)
		assert.Empty(t, r.Header.Get("Accept-Encoding"), "packing is work")
		connections[r.RemoteAddr] = true
		assert.Equal(t, "example.com", r.TLS.ServerName, "an ingress sees the name, not the address")
		answer(w)
	}))
	t.Cleanup(server.Close)
	client, at := clientOf(t, server, 0)

	for range 3 {
		text, err := client.Metrics(t.Context(), at)
		require.NoError(t, err)
		assert.Equal(t, "up 1\n", string(text))
	}
	assert.Len(t, connections, 1, "who looks again and again does not shake hands every time")
	for want, f := range map[string]func(http.ResponseWriter){
		"it answers 403 Forbidden": func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) },
		"it answers 302 Found": func(w http.ResponseWriter) {
			w.Header().Set("Location", "https://elsewhere.example.test/")
			w.WriteHeader(http.StatusFound)
		},
		"the answer is longer than": func(w http.ResponseWriter) { _, _ = w.Write([]byte(strings.Repeat("x", 17<<20))) },
	} {
		answer = f
		_, err := client.Metrics(t.Context(), at)
		require.ErrorContains(t, err, "asking etcd at https://example.com:443 for its metrics: "+want)
	}
}

// TestAConnectionMayTakeAsLongAsItsQuestion: gRPC would give it up after twenty seconds, and a way through a pod of a busy machine took twice that.
func TestAConnectionMayTakeAsLongAsItsQuestion(t *testing.T) {
	t.Parallel()
	cert, key := clientPair(t)
	given := make(chan time.Duration, 1)
	client, err := etcd.New(etcd.Options{
		TLS: etcd.TLS{CA: cert, Cert: cert, Key: key}, Timeout: time.Hour, Endpoints: []etcd.Endpoint{{URL: "https://127.0.0.1:2379"}},
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			end, limited := ctx.Deadline()
			if !limited {
				end = time.Now().Add(24 * time.Hour)
			}
			select {
			case given <- time.Until(end):
			default:
			}
			return nil, errors.New("nobody is there")
		},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	_, err = client.Status(t.Context(), "https://127.0.0.1:2379")
	require.ErrorContains(t, err, "nobody is there")
	assert.Greater(t, <-given, time.Minute)
}

// TestEndpointsWithOneURLAreAskedEach: members that are reached through their pods are all 127.0.0.1 to who asks.
func TestEndpointsWithOneURLAreAskedEach(t *testing.T) {
	t.Parallel()
	cert, key := clientPair(t)
	client, err := etcd.New(etcd.Options{
		TLS: etcd.TLS{CA: cert, Cert: cert, Key: key},
		Endpoints: []etcd.Endpoint{
			{Name: "pod etcd-a", URL: "https://127.0.0.1:2379", Address: "etcd-a:2379"}, {Name: "pod etcd-b", URL: "https://127.0.0.1:2379", Address: "etcd-b:2379"},
		},
		Dial: func(_ context.Context, _, address string) (net.Conn, error) {
			return nil, errors.New("nobody is at " + address)
		},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	for name, address := range map[string]string{"pod etcd-a": "etcd-a:2379", "pod etcd-b": "etcd-b:2379"} {
		_, err := client.Metrics(t.Context(), name)
		require.ErrorContains(t, err, "asking etcd at "+name+" for its metrics: ")
		require.ErrorContains(t, err, "nobody is at "+address)
	}
}

func TestIDsAreWrittenAsEtcdctlDoes(t *testing.T) {
	t.Parallel()
	saved, err := json.Marshal(map[string]etcd.ID{"id": 0x8e9e05c52164694d})
	require.NoError(t, err)
	assert.JSONEq(t, `{"id": "8e9e05c52164694d"}`, string(saved))
	var got map[string]etcd.ID
	require.NoError(t, json.Unmarshal(saved, &got))
	assert.Equal(t, etcd.ID(0x8e9e05c52164694d), got["id"])
	require.ErrorContains(t, json.Unmarshal([]byte(`{"id": "xyz"}`), &got), `reading the etcd id "xyz"`)
}

// TestASnapshotFromAServerThatTakesConnectionsAndSaysNothingEnds: right before the point of no return a run would wait for ever, and hear no Ctrl-C.
func TestASnapshotFromAServerThatTakesConnectionsAndSaysNothingEnds(t *testing.T) {
	t.Parallel()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	address := "https://" + listener.Addr().String()
	cert, key := clientPair(t)
	c, err := etcd.New(etcd.Options{TLS: etcd.TLS{CA: cert, Cert: cert, Key: key}, Endpoints: []etcd.Endpoint{{URL: address}}, Dial: new(net.Dialer).DialContext, Timeout: 50 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	dir := t.TempDir()
	_, err = c.Save(t.Context(), address, filepath.Join(dir, "etcd.db"), "/registry", nil)
	var failed *etcd.Error
	require.ErrorAs(t, err, &failed)
	assert.True(t, failed.Timeout(), "%v", err)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// stalling is an etcd whose disk hangs in the middle of a snapshot; it lives otherwise.
type stalling struct {
	etcdserverpb.UnimplementedMaintenanceServer
}

func (*stalling) Snapshot(_ *etcdserverpb.SnapshotRequest, to etcdserverpb.Maintenance_SnapshotServer) error {
	if err := to.Send(&etcdserverpb.SnapshotResponse{Blob: []byte("the beginning"), RemainingBytes: 1 << 20}); err != nil {
		return err
	}
	<-to.Context().Done()
	return to.Context().Err()
}

// TestASnapshotThatStandsStillEnds, although the server's connection lives: a run would wait for ever where etcd needs both machines.
func TestASnapshotThatStandsStillEnds(t *testing.T) {
	t.Parallel()
	inner := grpc.NewServer()
	etcdserverpb.RegisterMaintenanceServer(inner, &stalling{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			return
		}
		inner.ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	c, at := clientOf(t, server, 200*time.Millisecond)
	dir, came := t.TempDir(), int64(0)
	_, err := c.Save(t.Context(), at, filepath.Join(dir, "etcd.db"), "/registry", func(written int64) { came = written })
	require.ErrorContains(t, err, "after some of it: nothing came for 200ms")
	var failed *etcd.Error
	require.ErrorAs(t, err, &failed)
	assert.True(t, failed.Timeout(), "another look may find the disk well")
	require.NotErrorIs(t, err, context.Canceled, "nobody has interrupted it")
	assert.Positive(t, came)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}
