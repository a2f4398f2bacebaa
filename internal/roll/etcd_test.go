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
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
)

const (
	legacyID, newID = 0x1e, 0x2e
	peerOfNew       = "https://10.1.2.3:2380"
)

// ring is etcd as its members see it: the tests against real ones are in the lab.
type ring struct {
	mu      sync.Mutex
	members []*pb.Member
	leader  uint64
	// lose are the changes that are made and not answered, away the members that nobody can ask.
	lose, away map[string]bool
	// done is what was changed, in its order, and what was told of it meanwhile.
	done []string
	// takes are the times of messages to the new member, of which as many were measured as there were looks.
	takes []time.Duration
	looks int
	// behind is how often etcd finds that the learner lacks too much for a vote.
	behind int
	// silent: the new member is connected, and nothing comes from it.
	silent bool
	// enough is called with the last of the times, or when somebody has looked often enough to promote.
	enough func()
}

// newRing has the legacy member, and the new machine's with or without a vote.
func newRing(learner bool) *ring {
	return &ring{
		leader: legacyID, lose: map[string]bool{}, away: map[string]bool{},
		members: []*pb.Member{{ID: legacyID, Name: "etcd", PeerURLs: []string{"https://127.0.0.1:2380"}}, {ID: newID, Name: "al9qy-cp-x", PeerURLs: []string{peerOfNew}, IsLearner: learner}},
	}
}

// metrics are what the legacy member has measured so far: with each look one more message to the new member, and more bytes from it, unless it is silent.
func (r *ring) metrics(path string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if path == "/metrics" {
		r.looks++
		if r.enough != nil && r.looks == r.until() {
			r.enough()
		}
	}
	page := fmt.Sprintf("# TYPE etcd_network_active_peers gauge\netcd_network_active_peers{Local=\"%x\",Remote=\"%x\"} 1\n", legacyID, newID)
	bytes := 4711.0
	if !r.silent {
		bytes += float64(r.looks)
	}
	page += fmt.Sprintf("# TYPE etcd_network_peer_received_bytes_total counter\netcd_network_peer_received_bytes_total{From=\"%x\"} %g\n", newID, bytes)
	if len(r.takes) == 0 {
		return page
	}
	sum, count := 0.0, min(r.looks, unripe+len(r.takes))
	for _, t := range r.takes[:max(0, count-unripe)] {
		sum += t.Seconds()
	}
	const name = "etcd_network_peer_round_trip_time_seconds"
	return page + fmt.Sprintf("# TYPE %[1]s histogram\n%[1]s_bucket{To=\"%[2]x\",le=\"+Inf\"} %[3]d\n%[1]s_sum{To=\"%[2]x\"} %[4]g\n%[1]s_count{To=\"%[2]x\"} %[3]d\n", name, newID, count, sum)
}

// unripe is how often etcd tells of a way of no length before what it tells means anything: with each look a second passes.
const unripe = int(ripe / pollPause)

// until is how many looks are enough.
func (r *ring) until() int {
	if len(r.takes) == 0 {
		return 2 * steady
	}
	return unripe + len(r.takes)
}

func (r *ring) tell(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = append(r.done, what)
}

func (r *ring) told() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.done)
}

// change makes a change as one member is asked to.
func (r *ring) change(name string, do func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
	r.done = append(r.done, name)
	if r.lose[name] {
		return status.Error(codes.Unavailable, "nobody heard the answer")
	}
	return nil
}

// asked is one member of the ring.
type asked struct {
	pb.UnimplementedClusterServer
	pb.UnimplementedMaintenanceServer
	*ring

	id uint64
}

func (a *asked) header() *pb.ResponseHeader { return &pb.ResponseHeader{ClusterId: 1, MemberId: a.id} }

func (a *asked) MemberList(context.Context, *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &pb.MemberListResponse{Header: a.header(), Members: slices.Clone(a.members)}, nil
}

func (a *asked) MemberPromote(_ context.Context, request *pb.MemberPromoteRequest) (*pb.MemberPromoteResponse, error) {
	a.mu.Lock()
	behind := a.behind > 0
	a.behind--
	a.mu.Unlock()
	if behind {
		return nil, rpctypes.ErrGRPCLearnerNotReady
	}
	return &pb.MemberPromoteResponse{Header: a.header()}, a.change("promote", func() {
		for _, m := range a.members {
			m.IsLearner = m.IsLearner && m.ID != request.ID
		}
	})
}

func (a *asked) MemberRemove(_ context.Context, request *pb.MemberRemoveRequest) (*pb.MemberRemoveResponse, error) {
	return &pb.MemberRemoveResponse{Header: a.header()}, a.change("remove", func() {
		a.members = slices.DeleteFunc(slices.Clone(a.members), func(m *pb.Member) bool { return m.ID == request.ID })
	})
}

func (a *asked) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &pb.StatusResponse{Header: a.header(), Leader: a.leader}, nil
}

// serve answers for one member, and returns how it is reached.
func (r *ring) serve(t *testing.T, id uint64, certificate tls.Certificate) string {
	t.Helper()
	server, rpc := &asked{ring: r, id: id}, grpc.NewServer()
	pb.RegisterClusterServer(rpc, server)
	pb.RegisterMaintenanceServer(rpc, server)
	h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if strings.HasPrefix(request.Header.Get("Content-Type"), "application/grpc") {
			rpc.ServeHTTP(w, request)
			return
		}
		_, _ = io.WriteString(w, r.metrics(request.URL.Path))
	}))
	h.TLS, h.EnableHTTP2 = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}, true
	h.StartTLS()
	t.Cleanup(h.Close)
	return h.Listener.Addr().String()
}

// join makes a control plane whose etcd the ring is, in a management cluster with the new machine.
func (r *ring) join(t *testing.T) *Roller {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost", "etcd.test"}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	raw, err := x509.MarshalECPrivateKey(private)
	require.NoError(t, err)
	cert, key := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)

	c := with(t, append(firstNew("addresses: [{type: InternalIP, address: 10.1.2.3}]"), `
apiVersion: v1
kind: Node
metadata: {name: al9qy-cp-x}
spec: {providerID: kvm://al9qy/al9qy-cp-x}
`)...)
	c.Workload, c.Patience, c.Credentials = c.Management, time.Minute, etcd.TLS{CA: cert, Cert: cert, Key: key}
	old, fresh := r.serve(t, legacyID, pair), r.serve(t, newID, pair)
	dial := func(ctx context.Context, who, address string) (net.Conn, error) {
		r.mu.Lock()
		away := r.away[who]
		r.mu.Unlock()
		if away {
			return nil, errors.New("no way to " + who)
		}
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	c.PodDialer = func(*rest.Config) DialPod {
		return func(ctx context.Context, _, _ string, _ int) (net.Conn, error) { return dial(ctx, "new", fresh) }
	}
	c.Members, err = etcd.New(etcd.Options{
		Endpoints: []etcd.Endpoint{{URL: "https://etcd.test:443"}}, TLS: c.Credentials,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, "legacy", old) },
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Members.Close()) })
	c.Doubling = func(context.Context) error {
		r.tell("doubling")
		return nil
	}
	c.Single = func(ever bool) { r.tell(map[bool]string{true: "single", false: "never double"}[ever]) }
	// What is polled goes on at once.
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	c.Clock = clk
	ctx, cancel := context.WithCancel(t.Context())
	var ticking sync.WaitGroup
	ticking.Go(func() {
		for ctx.Err() == nil {
			if clk.HasWaiters() {
				clk.Step(pollPause)
			}
			time.Sleep(time.Millisecond) // the clock of the code under test is the one that is moved
		}
	})
	t.Cleanup(func() {
		cancel()
		ticking.Wait()
	})
	return c
}

// TestTheStretchWithTwoMembersIsToldByWhoeverSeesItsEnd: before the vote is given, and when the other member is seen to be gone, also by a run that did not remove it, or did
// not hear that it had.
func TestTheStretchWithTwoMembersIsToldByWhoeverSeesItsEnd(t *testing.T) {
	t.Parallel()
	gone := func(id uint64) func(r *ring) {
		return func(r *ring) { r.members = slices.DeleteFunc(r.members, func(m *pb.Member) bool { return m.ID == id }) }
	}
	lost := func(r *ring) { r.lose["remove"] = true }
	behind := func(r *ring) { r.behind = 1 }
	promote, leave, part := (*Roller).Promote, (*Roller).removeLegacyMember, (*Roller).Part
	for name, test := range map[string]struct {
		learner bool
		before  func(r *ring)
		do      func(*Roller, context.Context) error
		want    []string
	}{
		"a vote is given":                {true, nil, promote, []string{"doubling", "promote"}},
		"etcd refuses the vote at first": {true, behind, promote, []string{"doubling", "never double", "doubling", "promote"}},
		"a vote was given":               {false, nil, promote, nil},
		"the legacy member leaves":       {false, nil, leave, []string{"remove", "single"}},
		"the answer is lost":             {false, lost, leave, []string{"remove", "single"}},
		"it left before":                 {false, gone(legacyID), leave, []string{"single"}},
		"the new one leaves":             {false, nil, part, []string{"remove", "single", "single"}},
		"nobody heard that it did":       {false, lost, part, []string{"remove", "single"}},
		"the new one left before":        {false, gone(newID), part, []string{"single"}},
		"the new one never had its vote": {true, nil, part, []string{"remove", "never double"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRing(test.learner)
			if test.before != nil {
				test.before(r)
			}
			c := r.join(t)
			require.NoError(t, test.do(c, t.Context()))
			assert.Equal(t, test.want, r.told())
		})
	}
}

// TestAMemberThatSomebodyElseAddedStays: nobody's data are removed because a control plane is taken back.
func TestAMemberThatSomebodyElseAddedStays(t *testing.T) {
	t.Parallel()
	r := newRing(false)
	r.members = append(r.members, &pb.Member{ID: 0x3e, Name: "stranger", PeerURLs: []string{"https://10.9.9.9:2380"}})
	err := r.join(t).Part(t.Context())
	require.ErrorIs(t, err, ErrUnwell)
	require.ErrorContains(t, err, "3e stranger")
	assert.Empty(t, r.told())
}

// TestAVoteIsNotGivenToAMemberThatIsFar, and is when it has come near, whatever was measured before.
func TestAVoteIsNotGivenToAMemberThatIsFar(t *testing.T) {
	t.Parallel()
	r := newRing(true)
	r.takes = []time.Duration{time.Minute, time.Second, 501 * time.Millisecond, 20 * time.Millisecond}
	c := r.join(t)
	var notes []string
	c.Note = func(sentence string) { notes = append(notes, sentence) }
	require.NoError(t, c.Promote(t.Context()))
	assert.Equal(t, []string{"doubling", "promote"}, r.told())
	assert.Equal(t, unripe+len(r.takes)+steady-1, r.looks, "only when the last one was near")
	assert.Contains(t, strings.Join(notes, "\n"), "votes; a message to it and back takes 20ms")

	r = newRing(true)
	r.takes = slices.Repeat([]time.Duration{time.Second}, 2*steady)
	ctx, enough := context.WithCancel(t.Context())
	r.enough = enough
	require.Error(t, r.join(t).Promote(ctx))
	assert.Equal(t, unripe+len(r.takes), r.looks, "it was looked at often enough")
	assert.Empty(t, r.told())

	// Who does not ask how far it is does not wait for it either.
	r = newRing(true)
	r.takes = []time.Duration{time.Minute}
	c = r.join(t)
	c.Slowest = -1
	require.NoError(t, c.Promote(t.Context()))
	assert.Equal(t, steady, r.looks)
}

// TestAVoteIsNotGivenToAMemberThatIsSilent: etcd takes a machine that lost its power for connected and caught up, until its connections time out.
func TestAVoteIsNotGivenToAMemberThatIsSilent(t *testing.T) {
	t.Parallel()
	r := newRing(true)
	r.silent = true
	ctx, enough := context.WithCancel(t.Context())
	r.enough = enough
	require.Error(t, r.join(t).Promote(ctx))
	assert.Equal(t, 2*steady, r.looks, "it was looked at often enough")
	assert.Empty(t, r.told())
}

// TestAWayBackIsNotRefusedForTheMachineItIsTakenFor: when nobody can ask the new machine, the legacy member says that it is in. One that answers for the new machine, or does
// not know it, says nothing.
func TestAWayBackIsNotRefusedForTheMachineItIsTakenFor(t *testing.T) {
	t.Parallel()
	gone := func(id uint64) func(r *ring) {
		return func(r *ring) { r.members = slices.DeleteFunc(r.members, func(m *pb.Member) bool { return m.ID == id }) }
	}
	for name, test := range map[string]struct {
		away   []string
		before func(r *ring)
		left   bool
		fails  bool
	}{
		"both answer":                      {nil, nil, false, false},
		"the legacy member has left":       {[]string{"legacy"}, gone(legacyID), true, false},
		"nobody can ask the new machine":   {[]string{"new"}, nil, false, false},
		"nobody can ask any":               {[]string{"new", "legacy"}, nil, false, true},
		"the legacy one does not know it":  {[]string{"new"}, gone(newID), false, true},
		"another one answers in its place": {[]string{"new"}, gone(legacyID), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRing(false)
			if test.before != nil {
				test.before(r)
			}
			for _, who := range test.away {
				r.away[who] = true // before the client is made, which begins to connect at once
			}
			c := r.join(t)
			left, err := c.Left(t.Context())
			if test.fails {
				require.ErrorContains(t, err, "no way to new")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.left, left)
		})
	}
}

// TestALeadershipThatNobodyGivesBackHoldsUpNobody: whoever takes the phase back because of a broken machine cannot ask that machine.
func TestALeadershipThatNobodyGivesBackHoldsUpNobody(t *testing.T) {
	t.Parallel()
	r := newRing(false)
	r.leader, r.away["new"] = newID, true
	c := r.join(t)
	var told []string
	c.Tell = func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
	require.NoError(t, c.Unlead(t.Context()))
	require.NotEmpty(t, told)
	assert.Contains(t, told[len(told)-1], "no way to new")
	assert.Contains(t, told[len(told)-1], "it will when the new one is removed")

	gone := errors.New("the lock is lost")
	c.Gate = func(context.Context) error { return gone }
	require.ErrorIs(t, c.Unlead(t.Context()), gone)
}
