package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

// globals are the flags every command has, besides kubectl's.
type globals struct {
	workloadKubeconfig, workloadContext string

	color string
	ascii bool
	width int

	quiet              bool
	verbosity          int
	logFormat, logFile string
	timeout            time.Duration
	configFile         string
}

// Formats of --log-format.
const (
	logText = "text"
	logJSON = "json"
)

func (s *session) addGlobals(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVar(&s.global.configFile, "config", "", "file with defaults for flags (kind ClientConfig)")
	flags.StringVar(&s.global.color, "color", colorAuto, "colours on standard output: auto, always or never; NO_COLOR and CLICOLOR_FORCE count too")
	flags.BoolVar(&s.global.ascii, "ascii", false, "use no characters beyond ASCII")
	flags.IntVar(&s.global.width, "width", 0, "columns of text (default: the terminal's, else 100)")
	flags.BoolVarP(&s.global.quiet, "quiet", "q", false, "no progress, and of the log only errors")
	flags.IntVarP(&s.global.verbosity, "verbosity", "v", 0, "how much the log on standard error says: 1 information, 2 debugging, 6 everything")
	flags.StringVar(&s.global.logFormat, "log-format", logText, "log on standard error as text or json")
	flags.StringVar(&s.global.logFile, "log-file", "", "append a debugging log as JSON to this file")
	flags.DurationVar(&s.global.timeout, "timeout", 0, "give up after this time, for example 30s (default: never)")
	flags.StringVar(&s.global.workloadKubeconfig, "workload-kubeconfig", "", "kubeconfig of the workload cluster (default: the one in the legacy Secret)")
	flags.StringVar(&s.global.workloadContext, "workload-context", "", "context of the workload cluster")

	s.kube = &kube.Flags{ConfigFlags: genericclioptions.NewConfigFlags(true)}
	s.kube.CacheDir = nil // nothing here caches discovery on disk
	s.kube.AddFlags(flags)
	describe(flags, map[string]string{
		"kubeconfig":      "kubeconfig of the management cluster",
		"context":         "context of the management cluster",
		"namespace":       "namespace of --ca-secret when it names none",
		"request-timeout": "limit for one request to an API server, for example 10s; 0 means none",
	})
	complete(root, "color", fixed(colorAuto, colorAlways, colorNever))
	complete(root, "log-format", fixed(logText, logJSON))
	complete(root, "context", s.completeContexts)
}

// describe replaces the help text of flags that come from a library.
func describe(flags *pflag.FlagSet, texts map[string]string) {
	for name, text := range texts {
		if flag := flags.Lookup(name); flag != nil {
			flag.Usage = text
		}
	}
}

// prepare runs before every command: environment and configuration file fill in the flags, then log, clock and timeout are set up.
func (s *session) prepare(cmd *cobra.Command, _ []string) error {
	if cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd {
		return nil // the flags on its command line are somebody else's
	}
	s.running = cmd.CommandPath()
	if err := s.layers(cmd); err != nil {
		return err
	}
	g := &s.global
	switch {
	case !slices.Contains([]string{colorAuto, colorAlways, colorNever}, g.color):
		return usage("", "--color is %q; it can be auto, always or never", g.color)
	case !slices.Contains([]string{logText, logJSON}, g.logFormat):
		return usage("", "--log-format is %q; it can be text or json", g.logFormat)
	case g.width < 0 || g.verbosity < 0 || g.timeout < 0:
		return usage("", "--width, --verbosity and --timeout cannot be negative")
	}
	if err := s.setClock(); err != nil {
		return err
	}
	if err := s.setLog(); err != nil {
		return err
	}
	for _, sentence := range strayVariables(s.env, allFlagNames(cmd.Root())) {
		s.log.WithField("variable", sentence).Warn("an environment variable is not understood")
	}
	if g.timeout > 0 {
		ctx, cancel := context.WithTimeout(cmd.Context(), g.timeout)
		s.atEnd(func() error { cancel(); return nil })
		cmd.SetContext(ctx)
	}
	return nil
}

// layers applies environment and configuration file to the flags of a command.
func (s *session) layers(cmd *cobra.Command) error {
	flags := cmd.Flags()
	if !flags.Changed("config") {
		s.global.configFile = s.env[envName("config")]
	}
	if s.global.configFile != "" && s.config == nil {
		data, err := readSmallFile(s.global.configFile)
		if err != nil {
			return withHint(fmt.Errorf("reading the configuration: %w", err), "correct --config or %s", envName("config"))
		}
		if s.config, err = ParseClientConfig(s.global.configFile, data, allFlagNames(cmd.Root())); err != nil {
			return err
		}
	}
	var err error
	s.provenance, err = layer(flags, s.env, s.config, s.global.configFile)
	s.flags = flags
	return err
}

// typed tells whether the command line, and neither environment nor configuration file, gave a flag.
func (s *session) typed(flag string) bool { return s.provenance[flag] == fromFlag }

func (s *session) setClock() error {
	s.now = s.app.Clock.Now()
	if text := s.env[clockVariable]; text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return usage("", "%s is %q; it must be a time like 2026-11-21T07:12:00Z", clockVariable, text)
		}
		s.now = at
	}
	return nil
}

func (s *session) setLog() error {
	g := s.global
	opts := logOptions{stderr: s.app.Err, json: g.logFormat == logJSON, level: levelFor(g.quiet, s.watched(), g.verbosity)}
	if g.logFile != "" {
		file, err := openLogFile(g.logFile)
		if err != nil {
			return err
		}
		s.atEnd(file.Close)
		opts.file = file
	}
	s.log = newLogger(opts, s.secrets)
	if s.app.BridgeLogs != nil {
		s.app.BridgeLogs(newLogr(s.log))
	}
	return nil
}

// watched tells whether a person looks at standard error.
func (s *session) watched() bool {
	_, terminal := s.app.Terminal(s.app.Err)
	return isInteractive(s.env, terminal)
}

// location is where times are shown; nil, where nobody asks for a zone, leaves it to the document, which knows that of its windows or shows UTC. Only TZ counts: two machines should
// show the same document in the same way.
func (s *session) location() *time.Location {
	if name := s.env["TZ"]; name != "" {
		if location, err := time.LoadLocation(name); err == nil {
			return location
		}
	}
	return nil
}

// rendering are the flags about what a document's rendering shows.
type rendering struct {
	full, short bool
	audience    string
	only        string
}

// addTo adds the flags; phase is for documents that have phases.
func (r *rendering) addTo(cmd *cobra.Command, phase bool) {
	flags := cmd.Flags()
	flags.BoolVar(&r.full, "full", false, "show everything instead of collapsing long lists")
	flags.BoolVar(&r.short, "short", false, "show only what needs attention")
	flags.StringVar(&r.audience, "audience", string(report.Engineer), "who reads it: engineer, or customer (no host names, addresses and internal names)")
	complete(cmd, "audience", fixed(string(report.Engineer), string(report.Customer)))
	if phase {
		flags.StringVar(&r.only, "only", "", "only one phase, by name or number (adopt, 4, phase/4)")
		onlyTyped(cmd, "only")
		complete(cmd, "only", fixed(append([]string{plan.PhaseCheck}, migrate.PhaseNames()...)...))
	}
}

// options are the renderer's, for one place the answer goes to: colours and the terminal's width are for standard output.
func (s *session) options(r rendering, out output) report.Options {
	opts := report.Options{
		Width: s.global.width, ASCII: s.global.ascii, Full: r.full, Short: r.short, Only: r.only,
		Audience: report.Audience(r.audience), DateLocation: s.location(),
	}
	if out.file == "" {
		columns, terminal := s.app.Terminal(s.app.Out)
		opts.Color = useColor(s.global.color, s.env, terminal)
		opts.Width = lineWidth(s.global.width, columns)
		opts.Repeat = s.repeat
	}
	return opts
}

// flagNames lists the flags of a command, its own and the global ones.
func flagNames(cmd *cobra.Command) []string {
	var names []string
	add := func(flag *pflag.Flag) {
		if !flag.Hidden && !slices.Contains(names, flag.Name) {
			names = append(names, flag.Name)
		}
	}
	cmd.Flags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	cmd.PersistentFlags().VisitAll(add)
	slices.Sort(names)
	return names
}

// allFlagNames lists the flags of all commands.
func allFlagNames(root *cobra.Command) []string {
	all := map[string]bool{}
	for _, cmd := range family(root) {
		for _, name := range flagNames(cmd) {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// flagsByCommand lists the flags of every command, by its path.
func flagsByCommand(root *cobra.Command) map[string][]string {
	flags := map[string][]string{}
	for _, cmd := range family(root) {
		flags[cmd.CommandPath()] = flagNames(cmd)
	}
	return flags
}

// family is a command with all below it.
func family(cmd *cobra.Command) []*cobra.Command {
	below := cmd.Commands()
	all := append(make([]*cobra.Command, 0, len(below)+1), cmd)
	for _, c := range below {
		all = append(all, family(c)...)
	}
	return all
}

// takesSnapshots tells whether the command that was chosen can do without a management cluster.
func (s *session) takesSnapshots() bool { return s.flags != nil && s.flags.Lookup("from") != nil }

// adviceFor knows what to do about errors that come from below. Files come before the network: what the operating system says of a file looks like an error of the network.
func adviceFor(err error, snapshots bool) string {
	var network net.Error
	instead := func(text string) string {
		if !snapshots {
			return ""
		}
		return text
	}
	switch {
	case errors.Is(err, kube.ErrNoCluster):
		return "name a management cluster with --kubeconfig FILE or --context NAME" + instead(", or a snapshot with --from DIR|FILE")
	case errors.Is(err, legacy.ErrNotFound):
		return "migrate inventory lists the clusters"
	case errors.Is(err, legacy.ErrTargetInUse):
		return "choose another --out, or remove what is there"
	case apierrors.IsUnauthorized(err):
		return "log in again, or choose another --context"
	case apierrors.IsForbidden(err):
		return "ask for the rights to get and list it; nothing else is needed"
	case ofFile(err) != "":
		return adviceForFile(err, ofFile(err))
	case errors.As(err, &network) && !ofSystem(network):
		return "check with kubectl that the API server answers" + instead(", or work from a snapshot with --from")
	default:
		return ""
	}
}

// ofSystem tells that an error is only a number of the operating system, which knows timeouts as errors of the network do. What wraps one may well be of the network.
func ofSystem(err net.Error) bool {
	_, number := err.(syscall.Errno)
	return number
}

// ofFile is the file that an error is about; empty for other errors.
func ofFile(err error) string {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Path
	case errors.As(err, &link):
		return link.New
	default:
		return ""
	}
}

// adviceForFile knows what to do about a file that cannot be read or written.
func adviceForFile(err error, name string) string {
	name = printableText(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if whole, unknown := filepath.Abs(name); unknown == nil {
			name = whole
		}
		return "check the path: there is no " + name
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return "ask for the rights to " + name + ", or name another file"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "make room where " + name + " is, or write elsewhere, and repeat"
	case errors.Is(err, syscall.EISDIR):
		return "name a file: " + name + " is a folder"
	default:
		return "check " + name
	}
}
