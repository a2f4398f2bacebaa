package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// ErrNotCaughtUp means that a learner lacks too much of the log to vote. etcd itself says so, at promotion: asking again later is safe.
var ErrNotCaughtUp = errors.New("the learner has not caught up")

// ErrNotLeader means that a server was asked for what only the leader does.
var ErrNotLeader = errors.New("this member is not the leader")

// ErrUnsettled means that the server is not sure yet that all voters are well: it refuses to remove one for some seconds after another has
// come or gone (etcd v3.5, server/etcdserver/server.go, HealthInterval, 5 s). Asking again later is safe.
var ErrUnsettled = errors.New("the members are not connected for long enough")

// Promote makes a learner a voter. A member that votes already is left as it is; one that has not caught up yet is ErrNotCaughtUp.
// etcd asks that first, of voters too: asked twice within milliseconds, it may say so of a member that has just become a voter.
//
// A learner that stopped after it had caught up is promoted all the same: the leader goes by what it acknowledged last (etcd v3.5,
// server/etcdserver/server.go, isLearnerReady), and two voters of which one is gone cannot write any more. So look at Peers first.
func (c *Client) Promote(ctx context.Context, endpointName string, id ID) error {
	return c.ask(ctx, endpointName, "promotion of member "+id.String(), func(ctx context.Context, e *endpoint) error {
		_, err := e.grpc.MemberPromote(ctx, uint64(id))
		switch {
		case errors.Is(err, rpctypes.ErrMemberNotLearner):
			return nil
		case errors.Is(err, rpctypes.ErrMemberLearnerNotReady):
			return fmt.Errorf("%w: %w", ErrNotCaughtUp, err)
		}
		return err
	})
}

// MoveLeader gives the leadership to another voter. Only the leader can; anybody else answers ErrNotLeader.
func (c *Client) MoveLeader(ctx context.Context, endpointName string, to ID) error {
	return c.ask(ctx, endpointName, "leadership, to give it to member "+to.String(), func(ctx context.Context, e *endpoint) error {
		_, err := e.grpc.MoveLeader(ctx, uint64(to))
		if errors.Is(err, rpctypes.ErrNotLeader) {
			return fmt.Errorf("%w: %w", ErrNotLeader, err)
		}
		return err
	})
}

// Remove takes a member out of the cluster. One that is gone already is no error. A server that was removed ends itself.
func (c *Client) Remove(ctx context.Context, endpointName string, id ID) error {
	return c.ask(ctx, endpointName, "removal of member "+id.String(), func(ctx context.Context, e *endpoint) error {
		_, err := e.grpc.MemberRemove(ctx, uint64(id))
		switch {
		case errors.Is(err, rpctypes.ErrMemberNotFound):
			return nil
		case errors.Is(err, rpctypes.ErrUnhealthy):
			return fmt.Errorf("%w: %w", ErrUnsettled, err)
		}
		return err
	})
}

// ask asks one endpoint for an answer or a change of the cluster, within the client's timeout.
func (c *Client) ask(parent context.Context, endpointName, operation string, do func(ctx context.Context, e *endpoint) error) error {
	e, err := c.at(endpointName, operation)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(parent, c.timeout)
	defer cancel()
	if err := e.reach(ctx); err != nil {
		return &Error{Endpoint: e.name, Operation: operation, Err: err}
	}
	if err := do(ctx, e); err != nil {
		return &Error{Endpoint: e.name, Operation: operation, Err: err}
	}
	return nil
}
