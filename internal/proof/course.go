package proof

import (
	"slices"
	"strconv"
	"strings"
)

// Course is what the migration itself has done, or may have, since the first look, by its own record. It makes some changes expected; nobody else's.
type Course struct {
	// Elections is how many times it may have let etcd choose another leader: each makes the raft term one higher.
	Elections int `json:"elections,omitempty"`
	// TwoMembers tells that etcd may have needed two members for a while: when one of them is away, the other gives up its leadership and is elected again.
	TwoMembers bool `json:"twoMembers,omitempty"`
	// Retired are the pods, and the Nodes of the same name, whose machines it has replaced.
	Retired []string `json:"retired,omitempty"`
	// Replacing tells that it adds machines, and members of etcd, beside the legacy ones.
	Replacing bool `json:"replacing,omitempty"`
}

const byPlan = "the migration replaced this machine, as planned"

func (c Course) retired(name string) bool { return slices.Contains(c.Retired, name) }

// gone judges a pod or Node that is not there any more.
func (c Course) gone(name string, f Fact) Fact {
	if c.retired(name) {
		return expected(f, byPlan)
	}
	return f
}

// whole judges everything about a pod or Node that is still there: one that is just being replaced may be going already.
func (c Course) whole(name string, facts []Fact) []Fact {
	if !c.retired(name) {
		return facts
	}
	for i := range facts {
		if facts[i].Result == Changed {
			facts[i] = expected(facts[i], "the migration is just replacing this machine")
		}
	}
	return facts
}

// joined judges a Node that was not there before: machines of the cluster tell by their provider ID that they are.
func (c Course) joined(cluster string, n Node, f Fact) Fact {
	if c.Replacing && strings.HasPrefix(n.ProviderID, "kvm://"+cluster+"/") {
		return expected(f, meanwhile)
	}
	return f
}

// member judges a member of etcd that was not there before: it is called like the Node that it runs on, or not at all before it starts.
func (c Course) member(e *Evidence, m Member, f Fact) Fact {
	known := m.Name == "" || slices.ContainsFunc(e.Nodes.Items, func(n Node) bool {
		return n.Name == m.Name && strings.HasPrefix(n.ProviderID, "kvm://"+e.Cluster+"/")
	})
	if c.Replacing && known {
		return expected(f, meanwhile)
	}
	return f
}

const meanwhile = "it joined while the migration replaces machines"

const (
	moved   = "the migration moved the leadership"
	elected = "a leader was elected again while etcd needed two members; no member that was there before was restarted"
)

// term judges another raft term: there may have been as many elections as the migration asked for, and no more, unless etcd needed two members for a while. What is to be found out is whether somebody
// restarted a member, and that the start of its process tells better.
func (c Course) term(was, is Item[string], f Fact, ranOn bool) Fact {
	if f.Result != Changed {
		return f
	}
	before, err := strconv.ParseUint(*was.Value, 10, 64)
	if err != nil {
		return f
	}
	after, err := strconv.ParseUint(*is.Value, 10, 64)
	switch {
	case err != nil || after < before:
		return f
	case after-before <= uint64(max(c.Elections, 0)):
		return expected(f, moved)
	case c.TwoMembers && ranOn:
		return expected(f, elected)
	}
	return f
}

// leader judges another leader. How often it may have changed, the term tells.
func (c Course) leader(f Fact, ranOn bool) Fact {
	switch {
	case f.Result != Changed:
		return f
	case c.Elections > 0:
		return expected(f, moved)
	case c.TwoMembers && ranOn:
		return expected(f, elected)
	}
	return f
}

// ranOn tells that the processes of members that were there before, and are there still, are the same. Where none can be compared nobody knows.
func ranOn(members []Subject) bool {
	compared := false
	for i := range members {
		for j := range members[i].Facts {
			f := &members[i].Facts[j]
			if f.Name != processStart {
				continue
			}
			if f.Result != Same {
				return false
			}
			compared = true
		}
	}
	return compared
}

func expected(f Fact, meaning string) Fact {
	f.Result, f.Change, f.Meaning = Expected, "", meaning
	return f
}
