package cli

import (
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/pflag"
)

// kubeFlags say which clusters a command talks to, and as whom.
func kubeFlags() []string {
	return []string{
		"kubeconfig", "context", "cluster", "user", "server", "tls-server-name", "certificate-authority", "client-certificate", "client-key", "insecure-skip-tls-verify",
		"as", "as-uid", "as-group", "namespace", "workload-kubeconfig", "workload-context",
	}
}

// repeatedFlags say what a command works on and what was agreed about it. How it shows that, and what somebody agreed to once, is for every command anew.
func repeatedFlags() []string {
	return append(append([]string{"from", "file", "config"}, kubeFlags()...),
		"storageconfig-namespace", "storageconfig-name", "storageconfig-key-layout", "ca-cert", "ca-key", "ca-secret", "ca-vault", "decisions", "playbook", "set", "accept", "accept-until",
		"target-namespace", "kubernetes-version", "image", "image-repository",
		"etcd-snapshot", "etcd-latency", "first-worker", "max-workers", "surge", "concurrency", "soak", "patience", "control-planes", "keep-namespace")
}

// repeat adds to a command that is suggested those flags of the command line without which it would look elsewhere, or know less than this one. What the environment and the
// configuration file say they say to the next command as well.
func (s *session) repeat(command string) string {
	if s.flags == nil || s.commands == nil {
		return command
	}
	words, offered := []string{command}, s.offers(command)
	for _, name := range repeatedFlags() {
		flag := s.flags.Lookup(name)
		if flag == nil || !s.typed(name) || !slices.Contains(offered, name) || has(command, flag) || s.offline() && slices.Contains(kubeFlags(), name) {
			continue
		}
		words = append(words, s.typedAgain(flag)...)
	}
	return strings.Join(words, " ")
}

// has tells whether a command line gives a flag already.
func has(line string, flag *pflag.Flag) bool {
	words := strings.Fields(line)
	return slices.Contains(words, "--"+flag.Name) || flag.Shorthand != "" && slices.Contains(words, "-"+flag.Shorthand)
}

// offline tells that the command reads a snapshot, and so no cluster.
func (s *session) offline() bool {
	from := s.flags.Lookup("from")
	return from != nil && from.Value.String() != ""
}

// offers are the flags of the command that a command line begins with.
func (s *session) offers(line string) []string {
	words, commands := strings.Fields(line), s.commands()
	for n := len(words); n > 0; n-- {
		if flags, known := commands[strings.Join(words[:n], " ")]; known {
			return flags
		}
	}
	return nil
}

// typedAgain is a flag as somebody would type it. A value that holds a secret is not shown; an ellipsis stands in its place, so that a command that is copied does not go without it, to
// another cluster or past a gate.
func (s *session) typedAgain(flag *pflag.Flag) []string {
	values := []string{flag.Value.String()}
	if list, several := flag.Value.(pflag.SliceValue); several {
		values = list.GetSlice()
	}
	joint := " "
	if flag.NoOptDefVal != "" {
		joint = "=" // its value may be left out, so what follows it is none
	}
	elsewhere := slices.Concat(s.config[flag.Name], variable(s.env, flag))
	var words []string
	for _, value := range values {
		said := "--" + flag.Name + joint
		switch {
		case slices.Contains(layeredFlags(), flag.Name) && slices.Contains(elsewhere, value):
		case shown(flag.Name, value) != value || isMoreThanAnAddress(value):
			words = append(words, said+"…")
		default:
			words = append(words, said+shellescape.Quote(value))
		}
	}
	return words
}

// isMoreThanAnAddress tells a text with an address behind whose ? or # anything may stand, also a secret.
func isMoreThanAnAddress(text string) bool {
	_, address, found := strings.Cut(text, "://")
	return found && strings.ContainsAny(address, "?#")
}

// aboutFleet is a command about the fleet of a file.
func aboutFleet(verb, file string) string {
	return "migrate fleet " + verb + " -f " + shellescape.Quote(file)
}

// quoted are files for a command line.
func quoted(files []string) []string {
	out := make([]string, 0, len(files))
	for _, file := range files {
		out = append(out, shellescape.Quote(file))
	}
	return out
}
