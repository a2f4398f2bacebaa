package report

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// factsHeading is the title of what the migration owes an account of.
const factsHeading = "For the record"

// factLines are sentences without their full stop, a line each; none when there is nothing to account for. To a customer they are told without a name of anything or anybody.
func factLines(f *history.Facts, audience Audience) []string {
	if f == nil {
		return nil
	}
	customer := audience == Customer
	var lines []string
	if len(f.EtcdBefore) > 0 && !customer {
		lines = append(lines, "Etcd before: "+membersText(f.EtcdBefore))
	}
	if len(f.EtcdAfter) > 0 && !customer {
		lines = append(lines, "Etcd after: "+membersText(f.EtcdAfter))
	}
	if len(f.EtcdBefore) > 0 && len(f.EtcdAfter) > 0 && customer {
		lines = append(lines, "The database had "+plural(len(f.EtcdBefore), "member")+" before and "+plural(len(f.EtcdAfter), "member")+" after")
	}
	lines = append(lines, stretchLines(f, customer)...)
	if p := f.Proved; p != nil {
		what := map[bool]string{true: "Whether machines and the database were left running was compared last at ", false: "Compared with before the first change, last at "}[customer]
		lines = append(lines, what+exact(p.At)+": "+p.Outcome)
	}
	switch a := f.Authority; {
	case a == nil:
	case customer:
		lines = append(lines, "The private key of your cluster's certificate authority was read for the migration, and is in the new platform's store since "+exact(a.At))
	default:
		lines = append(lines, "The private key of the cluster's CA was read by "+a.By+" from "+a.From+", and is in the management cluster since "+exact(a.At)+
			": whoever may read its Secrets there can issue any certificate of the cluster")
	}
	return lines
}

// stretchLines tell of the times in which something was at stake, the oldest first.
func stretchLines(f *history.Facts, customer bool) []string {
	var lines []string
	for _, s := range []struct {
		earlier         []history.Stretch
		stretch         *history.Stretch
		past, now       string
		told, toldSoFar string
	}{
		{
			f.TwoMembersEarlier, f.TwoMembers, "Etcd needed both members for every write", "Etcd may need both members, and the loss of either stops writes,",
			"The database needed both of its members", "The database may need both of its members, and if one fails nothing can be changed in the cluster,",
		},
		{
			nil, f.Unpublished, "Nobody published the workers' ports", "Nobody may publish the workers' ports",
			"The workers' ports were published by nobody", "The workers' ports may be published by nobody",
		},
	} {
		past, now := s.past, s.now
		if customer {
			past, now = s.told, s.toldSoFar
		}
		for i := range s.earlier {
			lines = append(lines, stretchText(&s.earlier[i], past, now))
		}
		if s.stretch != nil {
			lines = append(lines, stretchText(s.stretch, past, now))
		}
	}
	return lines
}

// stretchText tells of a time that is over, or may not be.
func stretchText(s *history.Stretch, past, now string) string {
	if s.Until == nil {
		return now + " since " + exact(s.Since)
	}
	return past + " for at most " + spokenMost(s.Until.Sub(s.Since)) + ", from " + exact(s.Since) + " to " + exact(*s.Until)
}

// spokenMost is never less than what it was: of a longer time the seconds are left out, so it is a minute more.
func spokenMost(d time.Duration) string {
	if whole := d.Truncate(time.Minute); d > whole && d > 10*time.Minute {
		d = whole + time.Minute
	}
	return spokenDuration(d.String())
}

// membersText is the member table in a line.
func membersText(members []history.Member) string {
	rows := make([]string, 0, len(members))
	for _, m := range members {
		row := joinNonEmpty(" ", m.ID, cmp.Or(m.Name, "(not started)"), m.Role)
		if m.Term > 0 {
			row += fmt.Sprintf(", term %d, index %d, %d bytes", m.Term, m.Index, m.Bytes)
		}
		if len(m.PeerURLs) > 0 {
			row += ", peers " + strings.Join(m.PeerURLs, " ")
		}
		if len(m.ClientURLs) > 0 {
			row += ", clients " + strings.Join(m.ClientURLs, " ")
		}
		rows = append(rows, row)
	}
	return strings.Join(rows, "; ")
}
