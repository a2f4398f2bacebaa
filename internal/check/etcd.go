package check

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

const (
	// defaultQuota is etcd's limit of its database unless a flag says otherwise, in bytes; legacy members have no such flag
	// (etcd, server/storage/quota.go; legacy-system.md 6.1).
	defaultQuota = int64(2) << 30
	// quotaWarn and quotaBlock are shares of the quota in percent. A full database refuses writes until somebody compacts it by hand.
	quotaWarn, quotaBlock = 70, 90
	// maxBehind is how many entries a member may still have to apply: more is a member that does not keep up, not one that was asked
	// while it worked.
	maxBehind = 5000
)

// EtcdReader is the part of [etcd.Client] that the checks need.
type EtcdReader interface {
	Endpoints() []string
	Members(ctx context.Context) (etcd.Members, error)
	Status(ctx context.Context, endpoint string) (etcd.Status, error)
}

// EtcdState is what the members of a cluster's etcd say.
type EtcdState struct {
	Table etcd.Members
	// Answers are what each endpoint said about the member behind it.
	Answers []etcd.Status
}

// AskEtcd reads the member table, and asks every endpoint how its member is. It changes nothing: alarms are read from the members' own
// status, because asking for their list would go through the log like a write.
func AskEtcd(ctx context.Context, reader EtcdReader) (*EtcdState, error) {
	table, err := reader.Members(ctx)
	if err != nil {
		return nil, err
	}
	state := &EtcdState{Table: table}
	for _, endpoint := range reader.Endpoints() {
		status, err := reader.Status(ctx, endpoint)
		if err != nil {
			return nil, err
		}
		state.Answers = append(state.Answers, status)
	}
	return state, nil
}

// called is how a report names a member.
func called(m etcd.Member) string {
	if m.Name == "" {
		return "member " + m.ID.String()
	}
	return m.Name
}

func etcdAnswers(v *view) verdict {
	if v.Etcd == nil {
		if v.EtcdUnread == "" {
			return skipped("offline: etcd was not asked")
		}
		return failed([]string{v.EtcdUnread}, "etcd could not be asked, so nothing is known about its members")
	}
	var items []string
	leader := ""
	for _, answer := range v.Etcd.Answers {
		n := slices.IndexFunc(v.Etcd.Table.Members, func(m etcd.Member) bool { return m.ID == answer.Leader })
		switch {
		case answer.Leader == 0:
			items = append(items, "member "+answer.Member.String()+" knows no leader")
		case n < 0:
			items = append(items, fmt.Sprintf("member %s follows %s, which is no member", answer.Member, answer.Leader))
		case leader != "" && leader != called(v.Etcd.Table.Members[n]):
			items = append(items, fmt.Sprintf("member %s follows %s, another one %s", answer.Member, called(v.Etcd.Table.Members[n]), leader))
		default:
			leader = called(v.Etcd.Table.Members[n])
		}
		if answer.RaftIndex > answer.Applied+maxBehind {
			items = append(items, fmt.Sprintf("member %s has %d changes still to apply", answer.Member, answer.RaftIndex-answer.Applied))
		}
	}
	if len(items) > 0 {
		return failed(items, "etcd's members do not agree")
	}
	return held("%s, leader %s", plural(len(v.Etcd.Table.Members), "member", "members"), leader)
}

func etcdMembersVote(v *view) verdict {
	var items []string
	for _, m := range v.Etcd.Table.Members {
		switch {
		case m.Learner:
			items = append(items, called(m)+" is a learner")
		case m.Name == "":
			items = append(items, called(m)+" was added and never started")
		}
	}
	masters := len(v.cluster.Masters())
	if members := len(v.Etcd.Table.Members); members != masters {
		items = append(items, fmt.Sprintf("%s, %s", plural(members, "member", "members"), plural(masters, "master", "masters")))
	}
	if len(items) > 0 {
		return failed(items, "etcd's members are not the masters, all of them started and voting")
	}
	return held("%s", plural(masters, "member votes", "members vote"))
}

func etcdWithoutAlarm(v *view) verdict {
	var items []string
	for _, answer := range v.Etcd.Answers {
		for _, complaint := range answer.Errors {
			items = append(items, fmt.Sprintf("member %s: %s", answer.Member, complaint))
		}
	}
	if len(items) > 0 {
		return failed(items, "etcd complains")
	}
	return held("no complaint")
}

func etcdHasRoom(v *view) verdict {
	var items []string
	worst := int64(0)
	for _, answer := range v.Etcd.Answers {
		share := answer.Size * 100 / defaultQuota
		worst = max(worst, share)
		if share >= quotaWarn {
			items = append(items, fmt.Sprintf("member %s: %s, of which %s are in use", answer.Member, size(answer.Size), size(answer.InUse)))
		}
	}
	text := fmt.Sprintf("%d %% of %s", worst, size(defaultQuota))
	switch {
	case worst >= quotaBlock:
		return failed(items, "%s: when it is full, etcd refuses every write", text).as(Block)
	case worst >= quotaWarn:
		return failed(items, "%s. A defragmentation before the window makes snapshot and join faster", text)
	default:
		return held("%s", text)
	}
}

func size(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }

func etcdReachable(v *view) verdict {
	var items []string
	for _, m := range v.Etcd.Table.Members {
		for _, peer := range m.PeerURLs {
			if problem := unreachable(peer); problem != "" {
				items = append(items, called(m)+": "+problem)
			}
		}
	}
	if len(items) > 0 {
		return failed(items, "a new member could not reach the present ones")
	}
	return held("no address leads to the member's own machine only")
}

// unreachable says what is wrong with a peer URL for somebody on another machine.
func unreachable(peer string) string {
	parsed, err := url.Parse(peer)
	if err != nil || parsed.Hostname() == "" {
		return fmt.Sprintf("%q is no address", peer)
	}
	ip := net.ParseIP(parsed.Hostname())
	if strings.EqualFold(parsed.Hostname(), "localhost") || ip != nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		return peer + " leads to whoever asks"
	}
	if parsed.Scheme != "https" {
		return peer + " is not encrypted"
	}
	return ""
}

func etcdRunsItsVersion(v *view) verdict {
	want := v.running("etcd")
	var items []string
	have := ""
	for _, answer := range v.Etcd.Answers {
		have = answer.Version
		if want != "" && have != want {
			items = append(items, fmt.Sprintf("member %s runs %s", answer.Member, have))
		}
	}
	if len(items) > 0 {
		return failed(items, "the %s was made with etcd %s", legacy.Master, want)
	}
	return held("%s", have)
}
