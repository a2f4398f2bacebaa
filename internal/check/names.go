package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/nameserver"
)

// Names are what name servers say of one name.
type Names struct {
	// Name is what they were asked for.
	Name string
	// Servers are those the new machines are given, in their order; none when they have those of their host.
	Servers []NameServer
}

// NameServer is one of them, and its answer.
type NameServer struct {
	Address string
	// Found are the addresses it has for the name, sorted; none when it has none, and when it did not answer for the reason in Unread.
	Found  []string
	Unread string
}

// AskName asks one name server for one name; [nameserver.Resolver.Ask] does. An error that is [nameserver.ErrUnknown] is an answer.
type AskName func(ctx context.Context, server, name string) ([]string, error)

// mostServers is how many name servers a machine can have (api/v1beta2, KVMMachineSpec.DNS); a longer list is refused elsewhere.
const mostServers = 8

// AskNames asks all servers for a name, at once.
func AskNames(ctx context.Context, ask AskName, name string, servers []string) *Names {
	servers = servers[:min(len(servers), mostServers)]
	n := &Names{Name: name, Servers: make([]NameServer, len(servers))}
	var asked sync.WaitGroup
	for i, server := range servers {
		asked.Go(func() {
			n.Servers[i].Address = server
			found, err := ask(ctx, server, name)
			n.Servers[i].Found = found
			if err != nil && !errors.Is(err, nameserver.ErrUnknown) {
				n.Servers[i].Unread = err.Error()
			}
		})
	}
	asked.Wait()
	return n
}

// namesResolve judges what answered. A machine asks the first server as long as that one answers, so what the others lack is only worth knowing: they may be other people's, and know no private names.
// When the first one is silent here, it may still be the one that knows.
func namesResolve(v *view) verdict {
	var unknown, silent []string
	answers := map[string]bool{}
	for _, s := range v.Names.Servers {
		switch {
		case s.Unread != "":
			silent = append(silent, s.Unread)
		case len(s.Found) == 0:
			unknown = append(unknown, fmt.Sprintf("name server %s has no address for %s", s.Address, v.Names.Name))
		default:
			answers[strings.Join(s.Found, ", ")] = true
		}
	}
	lacking := fmt.Sprintf("%s no address for %s", plural(len(unknown), "name server has", "name servers have"), v.Names.Name)
	switch {
	case len(v.Names.Servers) == 0:
		return skipped("the new machines have the name servers of their hosts, which nobody can ask from here")
	case len(silent) == len(v.Names.Servers):
		return skipped("no name server of the new machines says from here: %s", strings.Join(silent, "; "))
	case v.Names.Servers[0].Unread == "" && len(v.Names.Servers[0].Found) == 0:
		return failed(slices.Concat(unknown, silent), "%s, the one that machines ask first among them", lacking).
			with(fmt.Sprintf("dig +short %s @%s, from a machine in the network of the VMs", v.Names.Name, v.Names.Servers[0].Address))
	case len(unknown) > 0:
		return warned(slices.Concat(unknown, silent), "%s; machines ask the first of %d", lacking, len(v.Names.Servers))
	case len(answers) > 1:
		return warned(slices.Sorted(maps.Keys(answers)), "name servers have different addresses for %s", v.Names.Name)
	}
	detail := fmt.Sprintf("%s is %s", v.Names.Name, slices.Collect(maps.Keys(answers))[0])
	if len(silent) > 0 {
		detail += "; from here " + strings.Join(silent, "; ")
	}
	return held("%s", detail)
}
