package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"syscall"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
)

// maxAnswer is far more than an etcd server says about itself; it keeps a wrong address from filling the memory.
const maxAnswer = 16 << 20

// ID is the number of a member or a cluster. As text it is written as etcdctl does: hexadecimal, without leading zeros.
type ID uint64

func (i ID) String() string { return strconv.FormatUint(uint64(i), 16) }

// MarshalText writes the ID as text; as a number JSON readers would round it.
func (i ID) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (i *ID) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 16, 64)
	if err != nil {
		return fmt.Errorf("reading the etcd id %q: %w", text, err)
	}
	*i = ID(n)
	return nil
}

// Member is one row of the member table.
type Member struct {
	ID ID `json:"id"`
	// Name is empty until the member has started for the first time.
	Name       string   `json:"name"`
	PeerURLs   []string `json:"peerURLs"`
	ClientURLs []string `json:"clientURLs"`
	Learner    bool     `json:"learner"`
}

// Members is the member table, sorted by id.
type Members struct {
	Cluster ID
	Members []Member
}

// Status is what one server says about itself.
type Status struct {
	Cluster ID `json:"cluster"`
	// Member is the one that answered.
	Member  ID   `json:"member"`
	Learner bool `json:"learner"`
	// Leader is 0 when the member knows none.
	Leader    ID     `json:"leader"`
	RaftTerm  uint64 `json:"raftTerm"`
	RaftIndex uint64 `json:"raftIndex"`
	// Applied is how far of RaftIndex the member has got.
	Applied uint64 `json:"applied"`
	Version string `json:"version"`
	// Size is the database on disk, InUse the part of it that holds something, both in bytes.
	Size  int64 `json:"size"`
	InUse int64 `json:"inUse"`
	// Errors are alarms and other complaints, in the member's words. The list of alarms itself is not asked for: that question
	// goes through the log of all members like a write.
	Errors []string `json:"errors,omitempty"`
}

// Members asks for the member table. It is the table a majority agrees on, from the first endpoint that can say.
func (c *Client) Members(ctx context.Context) (Members, error) {
	var all []error
	for _, e := range c.endpoints {
		table, err := c.membersAt(ctx, e)
		if err == nil {
			return table, nil
		}
		all = append(all, &Error{Endpoint: e.name, Operation: "member list", Err: err})
		if ctx.Err() != nil {
			break
		}
	}
	return Members{}, failure.Join(all...)
}

func (c *Client) membersAt(parent context.Context, e *endpoint) (Members, error) {
	ctx, cancel := context.WithTimeout(parent, c.timeout)
	defer cancel()
	if err := e.reach(ctx); err != nil {
		return Members{}, err
	}
	answer, err := e.grpc.MemberList(ctx)
	if err != nil {
		return Members{}, c.cause(parent, e, err)
	}
	table := Members{Cluster: ID(answer.Header.GetClusterId())}
	for _, m := range answer.Members {
		table.Members = append(table.Members, Member{
			ID: ID(m.ID), Name: m.Name, Learner: m.IsLearner,
			PeerURLs: slices.Sorted(slices.Values(m.PeerURLs)), ClientURLs: slices.Sorted(slices.Values(m.ClientURLs)),
		})
	}
	slices.SortFunc(table.Members, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return table, nil
}

// Status asks one endpoint how it is. The answer is of one member and needs no majority.
func (c *Client) Status(parent context.Context, endpointName string) (Status, error) {
	const operation = "status"
	e, err := c.at(endpointName, operation)
	if err != nil {
		return Status{}, err
	}
	ctx, cancel := context.WithTimeout(parent, c.timeout)
	defer cancel()
	if err := e.reach(ctx); err != nil {
		return Status{}, &Error{Endpoint: e.name, Operation: operation, Err: err}
	}
	answer, err := e.grpc.Status(ctx, e.grpc.Endpoints()[0])
	if err != nil {
		return Status{}, &Error{Endpoint: e.name, Operation: operation, Err: c.cause(parent, e, err)}
	}
	return Status{
		Cluster: ID(answer.Header.GetClusterId()), Member: ID(answer.Header.GetMemberId()), Learner: answer.IsLearner,
		Leader: ID(answer.Leader), RaftTerm: answer.RaftTerm, RaftIndex: answer.RaftIndex, Applied: answer.RaftAppliedIndex,
		Version: answer.Version, Size: answer.DbSize, InUse: answer.DbSizeInUse, Errors: answer.Errors,
	}, nil
}

// Metrics gets what the server at one endpoint measures, in Prometheus' text format.
func (c *Client) Metrics(ctx context.Context, endpointName string) ([]byte, error) {
	const operation = "metrics"
	e, err := c.at(endpointName, operation)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	text, err := e.get(ctx, "metrics")
	if err != nil {
		return nil, &Error{Endpoint: e.name, Operation: operation, Err: err}
	}
	return text, nil
}

// reach finds out whether there is a way to the server at all. The library would try again until the time is over, also where a name does
// not exist or a certificate is wrong, and a check of many clusters would wait ten seconds for each that cannot be reached.
func (e *endpoint) reach(ctx context.Context) error {
	var why error
	backoff := wait.Backoff{Duration: retryPause, Steps: retries + 1}
	err := wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (bool, error) {
		_, why = e.get(ctx, "version")
		// Only a server or an ingress that is just starting anew may be there a moment later.
		return why == nil || !errors.Is(why, syscall.ECONNREFUSED) && !errors.Is(why, syscall.ECONNRESET) && !errors.Is(why, io.EOF), nil
	})
	return cmp.Or(why, err)
}

// cause finds out why a question failed. The library tries again and again until the time is over and then only says that it is:
// a wrong certificate would look like a slow server. The way in for plain requests is the same one and says what is wrong with it.
func (c *Client) cause(ctx context.Context, e *endpoint, err error) error {
	if ctx.Err() != nil {
		return err // Somebody ended the question; there is nothing to explain.
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if _, why := e.get(ctx, "version"); why != nil {
		return why
	}
	return err
}

// get reads one path.
func (e *endpoint) get(ctx context.Context, path string) (text []byte, err error) {
	where, err := url.JoinPath(e.url, path)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := e.http.Do(request)
	if err != nil {
		return nil, unwrapURL(err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s", response.Status)
	}
	text, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxAnswer {
		return nil, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	return text, nil
}

// unwrapURL takes method and URL off an error, which names its endpoint already.
func unwrapURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}
