package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
)

//nolint:gochecknoglobals // flags of the test binary
var update = flag.Bool("update", false, "rewrite golden files, scripts and generated pages")

// testClock lies inside the validity of the fixtures' certificates.
const testClock = "2026-11-23T07:12:00Z"

// TestMain makes the program a command of the scripts.
func TestMain(m *testing.M) {
	PrepareProcess()
	testscript.Main(m, map[string]func(){
		"migrate": func() {
			os.Exit(int(Run(context.Background(), App{
				In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ(), Version: Version{Version: "test", Go: "go"},
			}, os.Args[1:])))
		},
	})
}

func TestScripts(t *testing.T) {
	withoutRaces(t)
	fixtures := fixturesDir(t)
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			env.Setenv("FIXTURES", fixtures)
			env.Setenv(clockVariable, testClock)
			env.Setenv("KUBECONFIG", filepath.Join(env.WorkDir, "no-kubeconfig"))
			env.Setenv("KUBERNETES_SERVICE_HOST", "")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			// code runs a command and compares its exit code: code 3 migrate check …
			"code": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: code N command arguments")
				}
				err, got := ts.Exec(args[1], args[2:]...), 0
				var exit *exec.ExitError
				if errors.As(err, &exit) {
					got = exit.ExitCode()
				} else {
					ts.Check(err)
				}
				if args[0] != strconv.Itoa(got) {
					ts.Fatalf("exit code %d, not %s", got, args[0])
				}
			},
		},
	})
}

// withoutRaces skips what runs commands one after the other that other tests run as well: what it looks at does not depend on the race detector, with which a command takes ten times as long.
func withoutRaces(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("other tests run these commands with the race detector")
	}
}

// ran is what one run of the program in this process left behind.
type ran struct {
	code           Code
	stdout, stderr string
}

// run runs the program in this process with a fixed clock and no kubeconfig.
func run(t *testing.T, args ...string) ran {
	t.Helper()
	return runApp(t, App{}, args...)
}

func runApp(t *testing.T, app App, args ...string) ran {
	t.Helper()
	return runContext(t.Context(), t, app, args...)
}

func runContext(ctx context.Context, t *testing.T, app App, args ...string) ran {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if app.Out == nil {
		app.Out = &stdout
	}
	if app.Err == nil {
		app.Err = &stderr
	}
	app.Environ = append([]string{clockVariable + "=" + testClock}, app.Environ...)
	app.Version = Version{Version: "test", Go: "go"}
	if !slices.Contains(args, "--kubeconfig") && args[0] != "__complete" {
		args = append(slices.Clone(args), "--kubeconfig", filepath.Join(t.TempDir(), "none"))
	}
	code := Run(ctx, app, args)
	return ran{code, stdout.String(), stderr.String()}
}

func fixturesDir(tb testing.TB) string {
	tb.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", "testdata", "fixtures"))
	require.NoError(tb, err)
	return dir
}

func fixture(tb testing.TB, name string) string {
	tb.Helper()
	return filepath.Join(fixturesDir(tb), name)
}

// golden compares with a file, or writes it with -update.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, got, 0o644))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run the tests with -update")
	require.Equal(t, string(want), string(got), "%s is not current; run the tests with -update and review the difference", file)
}

func fixedTime(tb testing.TB) time.Time {
	tb.Helper()
	at, err := time.Parse(time.RFC3339, testClock)
	require.NoError(tb, err)
	return at
}
