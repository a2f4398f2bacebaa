package proof_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

// TestWhatTheMigrationDidIsExpected, and what somebody else did is not.
func TestWhatTheMigrationDidIsExpected(t *testing.T) {
	t.Parallel()
	term := func(e *proof.Evidence, value string) { e.Etcd.Term.Value = &value }
	first := evidence()
	pod, node := first.VMs.Items[0].Pod, first.Nodes.Items[0].Name
	for name, c := range map[string]struct {
		alter func(e *proof.Evidence)
		want  proof.Outcome
	}{
		"as many elections as it asked for": {func(e *proof.Evidence) { term(e, "9"); e.Course.Elections = 2 }, proof.Untouched},
		"a leader whose id is a number": {func(e *proof.Evidence) {
			term(e, "8")
			e.Etcd.Leader.Value, e.Course.Elections = new("1234567890123456"), 1
		}, proof.Untouched},
		"more, because one of two members was away": {func(e *proof.Evidence) {
			term(e, "19")
			e.Etcd.Leader.Value, e.Course.Elections, e.Course.TwoMembers = new("another"), 0, true
		}, proof.Untouched},
		"more, because one of two members was restarted": {func(e *proof.Evidence) {
			term(e, "19")
			e.Etcd.Members[0].Started.Value, e.Course.TwoMembers = new(first.Metadata.CollectedAt.Add(time.Hour)), true
		}, proof.Touched},
		"more, and nobody knows when the member started": {func(e *proof.Evidence) {
			term(e, "19")
			e.Etcd.Members[0].Started, e.Course.TwoMembers = proof.Item[time.Time]{Unread: "403"}, true
		}, proof.Touched},
		"a term that went back with two members": {func(e *proof.Evidence) { term(e, "6"); e.Course.TwoMembers = true }, proof.Touched},
		"one more":                               {func(e *proof.Evidence) { term(e, "10"); e.Course.Elections = 2 }, proof.Touched},
		"a term that went back":                  {func(e *proof.Evidence) { term(e, "6"); e.Course.Elections = 2 }, proof.Touched},
		"a VM that it replaced": {func(e *proof.Evidence) {
			e.VMs.Items, e.Course.Retired = e.VMs.Items[1:], []string{pod}
		}, proof.Untouched},
		"a VM that somebody else removed": {func(e *proof.Evidence) {
			e.VMs.Items, e.Course.Retired = e.VMs.Items[1:], []string{"another"}
		}, proof.Touched},
		"a Node that it replaced": {func(e *proof.Evidence) {
			e.Nodes.Items, e.Course.Retired = e.Nodes.Items[1:], []string{node}
		}, proof.Untouched},
		"a Node that joined meanwhile": {func(e *proof.Evidence) {
			e.Nodes.Items = append(e.Nodes.Items, proof.Node{Name: "new", ProviderID: "kvm://al9qy/new"})
			e.Course.Replacing = true
		}, proof.Untouched},
		"a Node of somebody else meanwhile": {func(e *proof.Evidence) {
			e.Nodes.Items = append(e.Nodes.Items, proof.Node{Name: "new", ProviderID: "kvm://b4n9x/new"})
			e.Course.Replacing = true
		}, proof.Touched},
		"a member of the new Node": {func(e *proof.Evidence) {
			e.Nodes.Items = append(e.Nodes.Items, proof.Node{Name: "new", ProviderID: "kvm://al9qy/new"})
			e.Etcd.Members = append(e.Etcd.Members, proof.Member{ID: "2", Name: "new"})
			e.Course.Replacing = true
		}, proof.Untouched},
		"a member of somebody else": {func(e *proof.Evidence) {
			e.Etcd.Members = append(e.Etcd.Members, proof.Member{ID: "2", Name: "new"})
			e.Course.Replacing = true
		}, proof.Touched},
		"a VM that is just being replaced": {func(e *proof.Evidence) {
			e.VMs.Items[0].DeletionTimestamp, e.Course.Retired = new(first.Metadata.CollectedAt), []string{pod}
		}, proof.Untouched},
		"a Node that joined by itself": {func(e *proof.Evidence) {
			e.Nodes.Items = append(e.Nodes.Items, proof.Node{Name: "new"})
		}, proof.Touched},
		"an etcd that has left": {func(e *proof.Evidence) {
			e.Etcd = proof.Etcd{Unread: "nobody answers"}
			e.Course.Retired = []string{pod}
		}, proof.Untouched},
		"an etcd that nobody replaced": {func(e *proof.Evidence) { e.Etcd = proof.Etcd{Unread: "nobody answers"} }, proof.Incomplete},
	} {
		assert.Equal(t, c.want, proof.Compare(evidence(), later(c.alter)).Outcome, name)
	}
}
