package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// App is everything the program gets from outside. A test makes its own; the zero value has no input, no output and no environment.
type App struct {
	In       io.Reader
	Out, Err io.Writer
	// Environ are the variables, NAME=value.
	Environ []string
	// Clock is the clock; nil means the system's. The variable MIGRATE_CLOCK stops it for documents.
	Clock clock.WithTicker
	// Terminal returns the columns of a terminal; nil asks the operating system.
	Terminal func(w io.Writer) (columns int, ok bool)
	Version  Version
	// CompletionBudget is how long a shell may wait for suggestions; zero means a second.
	CompletionBudget time.Duration
	// BridgeLogs makes libraries that log on their own use our log; nil leaves them alone, because they know only one log per process.
	BridgeLogs func(logr.Logger)
	// Hard ends the work of commands that change a cluster: the context of Run only asks them to stop at a safe point. Nil never ends it.
	Hard context.Context //nolint:containedctx // one of the two ways in which a signal reaches the program
	// Wrap sees every request to an API server; for tests.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Version says what was built.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Date    string `json:"date,omitempty"`
	Go      string `json:"go,omitempty"`
}

// clockVariable stops the clock at a point in time, so that two runs make the same document.
const clockVariable = "MIGRATE_CLOCK"

// session is one run of the program.
type session struct {
	app     App
	env     map[string]string
	out     io.Writer
	kube    *kube.Flags
	global  globals
	log     *logrus.Logger
	secrets *redactor
	config  map[string][]string
	// flags are those of the command that was chosen, and provenance says where each value is from.
	flags      *pflag.FlagSet
	provenance map[string]string
	now        time.Time
	// running is the command that was chosen, for error messages.
	running string
	// lists are shared with the runs of other clusters; nil for a command of its own.
	lists *sharedLists
	// throttles are, too.
	throttles *throttles
	// commands are the flags of all commands, by their path.
	commands func() map[string][]string

	mu      sync.Mutex
	closers []func() error
}

// atEnd remembers what to close when the program ends. A completion that came too late may still be at work then.
func (s *session) atEnd(closeIt func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, closeIt)
}

func (s *session) end() { s.endTo(0) }

// endTo closes what was opened since there were so many things to close.
func (s *session) endTo(opened int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, closeIt := range s.closers[opened:] {
		_ = closeIt() // only what was read from
	}
	s.closers = s.closers[:opened]
}

// ending returns what closes everything that is opened from now on, for a process that stays for many nights.
func (s *session) ending() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	opened := len(s.closers)
	return func() { s.endTo(opened) }
}

// Run runs the program and returns its exit code. Everything it has to say about an error is on app.Err by then.
func Run(ctx context.Context, app App, args []string) Code {
	s, root := newSession(app)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	code := CodeOf(ctx, err)
	if err != nil {
		s.explainError(code, err)
	}
	s.end()
	return code
}

func newSession(app App) (*session, *cobra.Command) {
	if app.Clock == nil {
		app.Clock = clock.RealClock{}
	}
	if app.CompletionBudget == 0 {
		app.CompletionBudget = completionBudget
	}
	if app.Terminal == nil {
		app.Terminal = terminalWidth
	}
	for _, w := range []*io.Writer{&app.Out, &app.Err} {
		if *w == nil {
			*w = io.Discard
		}
	}
	app.Err = &serial{w: app.Err}
	if app.In == nil {
		app.In = strings.NewReader("")
	}
	s := &session{app: app, env: map[string]string{}, out: &patient{w: app.Out}, secrets: newRedactor(), running: "migrate", throttles: &throttles{}}
	for _, variable := range app.Environ {
		name, value, _ := strings.Cut(variable, "=")
		s.env[name] = value
	}
	for _, name := range secretVariables() {
		s.secrets.know(s.env[name])
	}
	s.log = newLogger(logOptions{stderr: app.Err, level: logrus.WarnLevel}, s.secrets)
	root := s.root()
	s.commands = sync.OnceValue(func() map[string][]string { return flagsByCommand(root) })
	return s, root
}

// root builds the tree of commands, in the order in which help shows them.
func (s *session) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "migrate",
		Short: "Take legacy KVM clusters to Cluster API, live",
		Long: `Look at legacy KVM clusters, find out what is in the way of their migration to Cluster API, plan it, run it, and take it back.

run, resume, rollback and fleet run change clusters; pause, approve and skip write what people said into a migration, and fleet hold into a fleet's record; all other commands only look. They read a live management cluster (kubectl's flags and
KUBECONFIG choose it) or, where they have the flag --from, a snapshot on disk.

Every flag, unless it says otherwise, can also be set by an environment variable (--log-format by MIGRATE_LOG_FORMAT) or in a file
given with --config. A flag wins over a variable, a variable over the file.`,
		Example: `  migrate inventory --context anubis
  migrate check al9qy
  migrate plan al9qy -o text -o html=report.html
  migrate plan --from snapshot.tar.gz`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			var names []string
			for _, sub := range cmd.Commands() {
				if sub.IsAvailableCommand() {
					names = append(names, sub.Name())
				}
			}
			return usage("migrate help", "there is no command %q%s", args[0], didYouMean(args[0], names))
		},
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: s.prepare,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
	}
	root.SetOut(s.out)
	root.SetErr(s.app.Err)
	root.SetIn(s.app.In)
	root.SetFlagErrorFunc(flagError)
	s.addGlobals(root)
	root.AddCommand(
		s.inventoryCommand(),
		s.checkCommand(),
		s.planCommand(),
		s.showCommand(),
		s.snapshotCommand(),
		s.runCommand(),
		s.statusCommand(),
		s.approveCommand(),
		s.skipCommand(),
		s.pauseCommand(),
		s.resumeCommand(),
		s.rollbackCommand(),
		s.proofCommand(),
		s.etcdCommand(),
		s.forecastCommand(),
		s.eventsCommand(),
		s.bundleCommand(),
		s.crdCommand(),
		s.playbookCommand(),
		s.fleetCommand(),
		s.estimateCommand(),
		s.explainCommand(),
		s.versionCommand(),
	)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	polishCompletion(root)
	return root
}

// flagError turns a mistake in a flag into a usage error with a suggestion.
func flagError(cmd *cobra.Command, err error) error {
	text := err.Error()
	hint := cmd.CommandPath() + " --help"
	if _, name, ok := strings.Cut(text, "unknown flag: --"); ok {
		return usage(hint, "there is no flag --%s here%s", name, didYouMeanFlag(name, flagNames(cmd)))
	}
	return usage(hint, "%s", text)
}

func didYouMeanFlag(name string, known []string) string {
	if best := nearest(name, known); best != "" {
		return "; did you mean --" + best + "?"
	}
	return ""
}

// explainError writes what went wrong and what to do next. An outcome has been shown already.
func (s *session) explainError(code Code, err error) {
	var end *outcome
	if errors.As(err, &end) {
		return
	}
	text, hint := printableText(s.secrets.text(err.Error())), hintOf(err)
	switch {
	case code == CodeInterrupted:
		text, hint = "interrupted; no cluster was changed and no file was left half written", ""
	case errors.Is(err, context.DeadlineExceeded) && s.global.timeout > 0:
		text, hint = fmt.Sprintf("gave up after %s: %s", s.global.timeout, text), "a larger --timeout, or 0s for none"
	case hint == "":
		hint = adviceFor(err, s.takesSnapshots())
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	lines = append(lines, s.origins(text)...)
	_, _ = fmt.Fprintf(s.app.Err, "%s: %s\n", s.running, strings.Join(lines, "\n  "))
	if hint != "" {
		arrow := "→"
		if s.global.ascii {
			arrow = "->"
		}
		_, _ = fmt.Fprintf(s.app.Err, "  %s %s\n", arrow, hint)
	}
}
