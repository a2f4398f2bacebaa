package proof

import (
	"slices"
	"strconv"
)

// Course is what the migration itself has done, or may have, since the first look, by its own record. It makes some changes expected; nobody else's.
type Course struct {
	// Elections is how many times it may have let etcd choose another leader: each makes the raft term one higher.
	Elections int `json:"elections,omitempty"`
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

// appeared judges a Node or member that was not there before.
func (c Course) appeared(f Fact) Fact {
	if c.Replacing {
		return expected(f, "it joined while the migration replaces machines")
	}
	return f
}

const moved = "the migration moved the leadership"

// term judges another raft term: there may have been as many elections as the migration asked for, and no more.
func (c Course) term(was, is Item[string], f Fact) Fact {
	if f.Result != Changed {
		return f
	}
	before, err := strconv.ParseUint(*was.Value, 10, 64)
	if err != nil {
		return f
	}
	after, err := strconv.ParseUint(*is.Value, 10, 64)
	if err != nil || after < before || after-before > uint64(max(c.Elections, 0)) {
		return f
	}
	return expected(f, moved)
}

// leader judges another leader. How often it may have changed, the term tells.
func (c Course) leader(f Fact) Fact {
	if f.Result != Changed || c.Elections == 0 {
		return f
	}
	return expected(f, moved)
}

func expected(f Fact, meaning string) Fact {
	f.Result, f.Change, f.Meaning = Expected, "", meaning
	return f
}
