package check

import (
	"cmp"
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

// AskNames asks all servers for a name, at once.
func AskNames(ctx context.Context, ask AskName, name string, servers []string) *Names {
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

// namesResolve judges what answered. A server that knows the name is enough for itself only: which one a machine asks is not known.
func namesResolve(v *view) verdict {
	var (
		unknown, silent []string
		unknowing       string
	)
	answers := map[string]bool{}
	for _, s := range v.Names.Servers {
		switch {
		case s.Unread != "":
			silent = append(silent, s.Unread)
		case len(s.Found) == 0:
			unknowing = cmp.Or(unknowing, s.Address)
			unknown = append(unknown, fmt.Sprintf("name server %s has no address for %s", s.Address, v.Names.Name))
		default:
			answers[strings.Join(s.Found, ", ")] = true
		}
	}
	switch {
	case len(v.Names.Servers) == 0:
		return skipped("the new machines have the name servers of their hosts, which nobody can ask from here")
	case len(unknown) > 0:
		return failed(slices.Concat(unknown, silent), "%s no address for %s", plural(len(unknown), "name server has", "name servers have"), v.Names.Name).
			with(fmt.Sprintf("dig +short %s @%s, from a machine in the network of the VMs", v.Names.Name, unknowing))
	case len(answers) == 0:
		return skipped("no name server of the new machines answers from here: %s", strings.Join(silent, "; "))
	case len(answers) > 1:
		return warned(slices.Sorted(maps.Keys(answers)), "name servers have different addresses for %s", v.Names.Name)
	}
	detail := fmt.Sprintf("%s is %s", v.Names.Name, slices.Collect(maps.Keys(answers))[0])
	if len(silent) > 0 {
		detail += fmt.Sprintf("; %s from here", plural(len(silent), "name server does not answer", "name servers do not answer"))
	}
	return held("%s", detail)
}
