package etcd

import (
	"context"
)

// Role is what a member is to the others.
type Role string

// The roles of members. A learner is known from the table alone, and the leader from any member that answers. Voter is one that votes and was not asked, because no endpoint leads to it;
// Unreached is one that may have been asked and did not say.
const (
	Leader    Role = "leader"
	Follower  Role = "follower"
	Learner   Role = "learner"
	Voter     Role = "voter"
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
	said, leaders := map[ID]*Status{}, map[ID]bool{}
	for _, e := range c.endpoints {
		status, err := c.Status(ctx, e.name)
		if err != nil {
			t.Unread = append(t.Unread, err.Error())
			continue
		}
		said[status.Member], leaders[status.Leader] = &status, true
	}
	for _, m := range known.Members {
		row := Row{Member: m, Status: said[m.ID], Role: Unreached}
		switch {
		case m.Learner:
			row.Role = Learner
		case row.Status != nil && row.Status.Leader == m.ID, row.Status == nil && leaders[m.ID] && len(t.Unread) == 0:
			row.Role = Leader
		case row.Status != nil:
			row.Role = Follower
		case len(said) > 0 && len(t.Unread) == 0:
			row.Role = Voter
		}
		t.Members = append(t.Members, row)
	}
	return t, nil
}

// Add adds what a member said by another way than the endpoints of the table.
func (t *Table) Add(said *Status) {
	for i := range t.Members {
		row := &t.Members[i]
		if row.ID != said.Member || row.Status != nil {
			continue
		}
		row.Status = said
		switch {
		case row.Learner:
		case said.Leader == said.Member:
			row.Role = Leader
		default:
			row.Role = Follower
		}
	}
}
