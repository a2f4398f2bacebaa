package etcd

import (
	"context"
)

// Role is what a member is to the others.
type Role string

// The roles of members. Unreached is a member that did not say; a learner is known from the table alone.
const (
	Leader    Role = "leader"
	Follower  Role = "follower"
	Learner   Role = "learner"
	Unreached Role = "unreached"
)

// Row is one member with what it says about itself.
type Row struct {
	Member

	Role Role `json:"role"`
	// Status is nil for a member that no endpoint leads to.
	Status *Status `json:"status,omitempty"`
}

// Table is the member table with every member's own words. It is shown before and after every change of members.
type Table struct {
	Cluster ID    `json:"cluster"`
	Members []Row `json:"members"`
	// Unread are the endpoints that did not answer, and why.
	Unread []string `json:"unread,omitempty"`
}

// Table asks for the member table, and every endpoint for its status.
func (c *Client) Table(ctx context.Context) (*Table, error) {
	known, err := c.Members(ctx)
	if err != nil {
		return nil, err
	}
	t := &Table{Cluster: known.Cluster}
	said := map[ID]*Status{}
	for _, e := range c.endpoints {
		status, err := c.Status(ctx, e.name)
		if err != nil {
			t.Unread = append(t.Unread, err.Error())
			continue
		}
		said[status.Member] = &status
	}
	for _, m := range known.Members {
		row := Row{Member: m, Status: said[m.ID], Role: Unreached}
		switch {
		case m.Learner:
			row.Role = Learner
		case row.Status != nil && row.Status.Leader == m.ID:
			row.Role = Leader
		case row.Status != nil:
			row.Role = Follower
		}
		t.Members = append(t.Members, row)
	}
	return t, nil
}
