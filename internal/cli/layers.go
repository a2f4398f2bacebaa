package cli

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// envPrefix begins the name of every environment variable that stands for a flag.
const envPrefix = "MIGRATE_"

// Where the value of a flag came from.
const (
	fromFlag    = "flag"
	fromEnv     = "environment"
	fromConfig  = "config file"
	fromBuiltIn = "built-in"
)

// envName returns the variable that stands for a flag.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// layeredFlags are the lists of which nothing replaces anything: what an installation says of windows in its configuration file must hold for who names the playbook of a customer as well.
func layeredFlags() []string { return []string{"playbook", "set"} }

// typedOnly is the annotation of flags that neither environment nor configuration file sets.
const typedOnly = "migrate-typed-only"

// onlyTyped keeps the defaults for a flag of the same name that means something else in another command away from this one's.
func onlyTyped(cmd *cobra.Command, name string) {
	flag := cmd.Flags().Lookup(name)
	flag.Annotations = map[string][]string{typedOnly: {"true"}}
	flag.Usage += "; no variable and no configuration file sets it"
}

// hasDefaults tells whether environment and configuration file may set a flag.
func hasDefaults(flag *pflag.Flag) bool { return flag.Annotations[typedOnly] == nil }

// layer gives every flag that the command line left alone the value of the environment, or else of the configuration file, and
// returns where each value came from. An empty variable counts as unset. Lists in variables have one entry per line. [layeredFlags]
// have the values of all three, the file's first. The file's name is for messages.
func layer(flags *pflag.FlagSet, env map[string]string, config map[string][]string, file string) (map[string]string, error) {
	sources := map[string]string{}
	var wrong error
	flags.VisitAll(func(flag *pflag.Flag) {
		list, layered := flag.Value.(pflag.SliceValue)
		layered = layered && slices.Contains(layeredFlags(), flag.Name)
		if flag.Changed {
			sources[flag.Name] = fromFlag
			if layered {
				wrong = errors.Join(wrong, list.Replace(under(slices.Concat(config[flag.Name], variable(env, flag)), list.GetSlice())))
			}
			return
		}
		sources[flag.Name] = fromBuiltIn
		if !hasDefaults(flag) {
			return
		}
		values, source, where := config[flag.Name], fromConfig, file
		if said := variable(env, flag); len(said) > 0 {
			if layered {
				said = under(values, said)
			}
			values, source, where = said, fromEnv, envName(flag.Name)
		}
		for _, value := range values {
			if err := flags.Set(flag.Name, value); err != nil && wrong == nil {
				wrong = usage("", "%s: invalid value %q for --%s: %s", where, shown(flag.Name, value), flag.Name, reasonOf(err))
			}
			sources[flag.Name] = source
		}
		if outs, ok := flag.Value.(interface{ cameFrom(where string) }); ok {
			outs.cameFrom(where)
		}
	})
	return sources, wrong
}

// under puts what is said on a lower level below what is said above it. What both say stays where it is above: commands that this program prints name all of them.
func under(below, above []string) []string {
	below = slices.DeleteFunc(slices.Clone(below), func(value string) bool { return slices.Contains(above, value) })
	return slices.Concat(below, above)
}

// namesOneOf tells that one of some names of files is that of the same file, however it is spelled.
func namesOneOf(files []string, name string) bool {
	return slices.ContainsFunc(files, func(file string) bool { return sameFile(file, name) })
}

func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	one, err := os.Stat(a)
	if err != nil {
		return false // Whoever reads it says why.
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// variable is what the environment says of a flag; nothing when its variable is unset or empty.
func variable(env map[string]string, flag *pflag.Flag) []string {
	value := env[envName(flag.Name)]
	if value == "" || !isList(flag) {
		return slices.DeleteFunc([]string{value}, func(v string) bool { return v == "" })
	}
	return perLine(value)
}

// perLine are the entries of a list in a variable.
func perLine(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == '\n' })
}

// reasonOf returns the end of pflag's message: what is wrong without the flag's name again.
func reasonOf(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "flag: "); i >= 0 {
		return text[i+len("flag: "):]
	}
	return text
}

func isList(flag *pflag.Flag) bool {
	_, ok := flag.Value.(pflag.SliceValue)
	return ok
}

// secretFlags are the flags whose values must not be shown or kept in a file.
func secretFlags() []string { return []string{"token", "password"} }

func isSecretFlag(name string) bool { return slices.Contains(secretFlags(), name) }

// secretVariables are the variables that hold a secret of this program's own: no text repeats it, and no other program gets it.
func secretVariables() []string {
	names := []string{"VAULT_TOKEN"} //nolint:prealloc // a handful
	for _, flag := range secretFlags() {
		names = append(names, envName(flag))
	}
	return names
}

// shown is how a flag's value is repeated: without the credentials that addresses hold, and without settings whose names say that
// they are secret, such as those of --set.
func shown(name, value string) string {
	if isSecretFlag(name) && value != "" {
		return redaction
	}
	lines := strings.Split(value, "\n")
	for i, line := range lines {
		if setting, said, found := strings.Cut(line, "="); found && legacy.IsSecret(setting, said) {
			lines[i] = setting + "=" + redaction
			continue
		}
		lines[i] = withoutCredentials(line)
	}
	return strings.Join(lines, "\n")
}

// withoutCredentials takes users and passwords, and parameters whose names say that they are secret, out of the addresses in a text.
// The text is no address alone: a probe has a name in front, and lists are joined by commas. That is why no URL is parsed here.
func withoutCredentials(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	text = regexp.MustCompile(`://[^/\s]*@`).ReplaceAllLiteralString(text, "://"+redaction+"@")
	parameter := regexp.MustCompile(`([?&;])([^=?&;#\s]+)=([^&;#\s]*)`)
	return parameter.ReplaceAllStringFunc(text, func(found string) string {
		parts := parameter.FindStringSubmatch(found)
		name, err := url.QueryUnescape(parts[2])
		if err != nil || legacy.IsSecret(name, parts[3]) {
			return parts[1] + parts[2] + "=" + redaction
		}
		return found
	})
}

// strayVariables returns a sentence for every MIGRATE_ variable that stands for nothing.
func strayVariables(env map[string]string, known []string) []string {
	names := make([]string, 0, len(known)+1)
	for _, flag := range known {
		names = append(names, envName(flag))
	}
	names = append(names, clockVariable)
	var sentences []string
	for name := range env {
		if strings.HasPrefix(name, envPrefix) && !slices.Contains(names, name) {
			sentences = append(sentences, fmt.Sprintf("%s stands for no flag%s", name, didYouMean(name, names)))
		}
	}
	slices.Sort(sentences)
	return sentences
}

// origins says of every default that an error speaks of, by the name of its flag or by its value, where it is from: nobody
// finds it on the command line.
func (s *session) origins(text string) []string {
	if s.flags == nil {
		return nil
	}
	var sentences []string
	s.flags.VisitAll(func(flag *pflag.Flag) {
		source, layered := s.provenance[flag.Name], slices.Contains(layeredFlags(), flag.Name)
		for _, said := range []struct {
			source, where string
			values        []string
		}{
			{fromConfig, s.global.configFile, s.config[flag.Name]},
			{fromEnv, envName(flag.Name), variable(s.env, flag)},
		} {
			inForce := hasDefaults(flag) && len(said.values) > 0 && (source == said.source || layered)
			spokenOf := source == said.source && speaksOf(text, flag.Name) || slices.ContainsFunc(said.values, func(value string) bool { return names(text, value) })
			if inForce && spokenOf && !strings.Contains(text, said.where) {
				sentences = append(sentences, fmt.Sprintf("--%s is set by %s", flag.Name, said.where))
			}
		}
	})
	return sentences
}

// speaksOf tells whether a text has the name of a flag, and not only of one whose name begins alike.
func speaksOf(text, flag string) bool {
	for _, rest := range strings.Split(text, "--"+flag)[1:] {
		if rest == "" || !strings.ContainsAny(rest[:1], "-abcdefghijklmnopqrstuvwxyz") {
			return true
		}
	}
	return false
}

// names tells whether a text quotes a flag's value, or has its file, which may follow a format.
func names(text, value string) bool {
	if strings.Contains(text, strconv.Quote(value)) {
		return true
	}
	if _, file, ok := strings.Cut(value, "="); ok {
		value = file
	}
	return strings.ContainsAny(value, "./") && strings.Contains(text, value)
}
