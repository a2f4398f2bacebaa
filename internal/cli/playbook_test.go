package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

func book(t *testing.T, spec string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "book.yaml")
	require.NoError(t, os.WriteFile(file, []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nmetadata: {name: test}\nspec:\n"+spec), 0o600))
	return file
}

func TestPlaybookCommands(t *testing.T) {
	t.Parallel()
	const weekend = "../../playbooks/weekend.yaml"
	got := run(t, "playbook", "lint", weekend)
	require.Equal(t, CodeOK, got.code, got.stdout+got.stderr)
	assert.Contains(t, got.stdout, "nothing is wrong")

	got = run(t, "playbook", "windows", weekend, "--next", "2")
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Contains(t, got.stdout, "START (Europe/Berlin)")
	assert.Contains(t, got.stdout, "Sat 2026-11-28 22:00   Sun 06:00 CET  21:00 – 05:00  Sun 05:15           saturday")
	long := book(t, "  windows: {timeZone: Europe/Berlin, open: [{name: holidays, from: 2026-12-05T20:00, to: 2026-12-19T20:00}]}\n")
	got = run(t, "playbook", "windows", long, "--next", "1")
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Contains(t, got.stdout, "Sat 2026-12-05 20:00   Sat 2026-12-19 20:00 CET  19:00 – 2026-12-19 19:00  Sat 2026-12-19 19:15  holidays", "of two weeks the end has a day")
	got = run(t, "playbook", "windows", long, "--next", "1", "--ascii")
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Contains(t, got.stdout, "19:00 - 2026-12-19 19:00")
	assert.True(t, isASCII(got.stdout), got.stdout)
	got = run(t, "playbook", "windows", weekend, "--next", "1", "--from", "2026-12-19", "-o", "json")
	require.Equal(t, CodeOK, got.code, got.stderr)
	var document struct{ Windows []opening }
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &document))
	require.Len(t, document.Windows, 1)
	assert.Equal(t, "2026-12-19T23:00:00Z", document.Windows[0].End.Format(time.RFC3339), "the freeze begins at midnight")

	got = run(t, "playbook", "explain", weekend, "--set", "spec.workers.surge=3")
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Regexp(t, `spec\.workers\.surge +3 +--set spec\.workers\.surge`, got.stdout)
	assert.Regexp(t, `spec\.windows\.noReturn +30m0s +built-in`, got.stdout)

	got = run(t, "playbook", "schema")
	require.Equal(t, CodeOK, got.code)
	assert.True(t, json.Valid([]byte(got.stdout)))

	got = run(t, "playbook", "lint", book(t, "  windows: {timeZone: UTC}\n"))
	assert.Equal(t, CodeBlocked, got.code)
	assert.Contains(t, got.stdout, "nothing opens in the next 60 days")
	got = run(t, "playbook", "lint", book(t, "  windows: {timeZone: UTC}\n"), "-o", "json")
	assert.Equal(t, CodeBlocked, got.code)
	var found doubts
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &found))
	require.Len(t, found.Doubts, 1)
	assert.Contains(t, found.Doubts[0], "nothing opens in the next 60 days")
	got = run(t, "playbook", "lint", weekend, "-o", "json")
	require.Equal(t, CodeOK, got.code)
	assert.JSONEq(t, `{"files": ["`+weekend+`"], "doubts": []}`, got.stdout)
	wrong := book(t, "  sook: {}\n")
	got = run(t, "playbook", "lint", wrong, "-o", "json")
	require.Equal(t, CodeUsage, got.code)
	var wrongs doubts
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &wrongs), got.stdout)
	require.NotEmpty(t, wrongs.Mistakes)
	assert.Equal(t, wrong, wrongs.Mistakes[0].File)
	assert.Positive(t, wrongs.Mistakes[0].Line)
	assert.Positive(t, wrongs.Mistakes[0].Column)
	assert.Contains(t, got.stderr, wrongs.Mistakes[0].Text, "people read the same")
	for _, args := range [][]string{{"playbook", "lint", wrong}, {"playbook", "windows", wrong}, {"run", "al9qy", "--playbook", wrong}, {"resume", "al9qy", "--playbook", wrong}} {
		got = run(t, args...)
		assert.Equal(t, CodeUsage, got.code, "%s", args)
		assert.Contains(t, got.stderr, `book.yaml:5:3: unknown key "sook" in spec; did you mean soak?`)
	}
	for _, args := range [][]string{
		{"playbook", "lint"},
		{"playbook", "windows", book(t, "  {}\n")},
		{"playbook", "windows", weekend, "--next", "0"},
		{"playbook", "windows", weekend, "--from", "soon"},
		{"playbook", "explain", weekend, "--set", "workers"},
		{"run", "al9qy", "--playbook", book(t, "  clusters: {names: [b4n9x]}\n")},
		{"approve", "al9qy"},
		{"approve", "al9qy", "finalise", "--reason", "x"},
		{"approve", "al9qy", "finalize"},
		{"approve", "al9qy", "finalize", "--reason", "x", "--until", "soon"},
		{"approve", "al9qy", "finalize", "--reason", "x", "--until", "2025-12-31"},
	} {
		got = run(t, args...)
		assert.Equal(t, CodeUsage, got.code, "%s: %s", args, got.stderr)
	}
}

// TestATokenInAGatesAddressIsNowhereToBeSeen: it is in no plan, and neither explained nor told when it drifts.
func TestATokenInAGatesAddressIsNowhereToBeSeen(t *testing.T) {
	t.Parallel()
	file := book(t, "  gates: [{name: slo, before: [node], http: {url: 'https://slo.example.test/acme?token=planted-s3cr3t'}}]\n")
	seen := func(args ...string) string {
		got := run(t, args...)
		assert.Contains(t, got.stdout, "https://slo.example.test/acme", got.stderr)
		assert.NotContains(t, got.stdout+got.stderr, "planted-s3cr3t", "%s", args)
		return got.stdout
	}
	seen("playbook", "explain", file)
	seen("playbook", "explain", file, "-o", "json")
	from := filepath.Join(fixture(t, "al9qy"), "input")
	var planned plan.Plan
	require.NoError(t, json.Unmarshal([]byte(seen("plan", "--from", from, "--playbook", file, "-o", "json")), &planned))
	e, err := readBook([]string{book(t, "  gates: [{name: slo, before: [node], http: {url: 'https://slo.example.test/acme?token=another-s3cr3t'}}]\n")}, nil)
	require.NoError(t, err)
	differs := driftOfPlaybook(planned.Schedule, e.Values)
	require.Len(t, differs, 1)
	assert.Contains(t, differs[0], "playbook spec.gates[0].http.url: https://slo.example.test/acme (and what is not shown;")
	assert.NotContains(t, differs[0], "s3cr3t")
}

// TestAPlaybookThatIsNamedTwiceCountsOnce, however its name is spelled: its gates are not two of one name.
func TestAPlaybookThatIsNamedTwiceCountsOnce(t *testing.T) {
	t.Parallel()
	file := book(t, "  gates: [{name: slo, before: [node], http: {url: 'https://slo.example.test/'}}]\n")
	other := filepath.Join(filepath.Dir(file), ".", "..", filepath.Base(filepath.Dir(file)), "book.yaml")
	link := filepath.Join(t.TempDir(), "link.yaml")
	require.NoError(t, os.Symlink(file, link))
	for _, again := range []string{file, filepath.Dir(file) + "/./book.yaml", other, link} {
		e, err := readBook([]string{file, again}, nil)
		require.NoError(t, err, again)
		assert.Len(t, e.Spec.Gates, 1)
	}
}

// TestAnApprovalSaysWhenItEnds: the end of a day in UTC is no midnight for whoever is elsewhere.
func TestAnApprovalSaysWhenItEnds(t *testing.T) {
	t.Parallel()
	for until, want := range map[string]string{
		"":                          "al9qy: finalize is approved by ada: CHG-1\n",
		"2026-12-31":                "al9qy: finalize is approved by ada until 2027-01-01T00:00:00Z: CHG-1\n",
		"2026-12-31T18:00:00+01:00": "al9qy: finalize is approved by ada until 2026-12-31T17:00:00Z: CHG-1\n",
	} {
		approval := migrationv1alpha1.Approval{Gate: "finalize", By: "ada", Reason: "CHG-1"}
		if until != "" {
			at, err := parseUntil(until)
			require.NoError(t, err)
			approval.Until = new(metav1.NewTime(at))
		}
		out := &strings.Builder{}
		writeApproval(out, "al9qy", approval)
		assert.Equal(t, want, out.String())
	}
}

// wall is a clock whose time is ahead of what its timers have seen.
type wall struct {
	*clocktesting.FakeClock

	ahead atomic.Int64
}

func (w *wall) Now() time.Time { return w.FakeClock.Now().Add(time.Duration(w.ahead.Load())) }

func TestAWaitEndsWithItsTimeOrWithCtrlC(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	s := &session{app: App{Clock: clk, Err: t.Output()}}
	woken := make(chan struct{})
	go func() {
		s.sleep(t.Context(), "al9qy", clk.Now().Add(48*time.Hour))
		woken <- struct{}{}
	}()
	require.Eventually(t, clk.HasWaiters, 10*time.Second, time.Millisecond)
	clk.Step(47 * time.Hour)
	select {
	case <-woken:
		assert.Fail(t, "an hour too early")
	default:
	}
	require.Eventually(t, clk.HasWaiters, 10*time.Second, time.Millisecond)
	clk.Step(time.Hour)
	<-woken

	// A machine that was suspended for the night has timers that stood still; the next look at the wall sees that the time has come.
	suspended := &wall{FakeClock: clk}
	s.app.Clock = suspended
	go func() {
		s.sleep(t.Context(), "al9qy", suspended.Now().Add(8*time.Hour))
		woken <- struct{}{}
	}()
	require.Eventually(t, clk.HasWaiters, 10*time.Second, time.Millisecond)
	suspended.ahead.Store(int64(8 * time.Hour))
	clk.Step(time.Minute)
	<-woken
	s.app.Clock = clk

	ctx, stop := context.WithCancel(t.Context())
	go func() {
		s.sleep(ctx, "al9qy", clk.Now().Add(48*time.Hour))
		woken <- struct{}{}
	}()
	require.Eventually(t, clk.HasWaiters, 10*time.Second, time.Millisecond)
	stop()
	<-woken
}

// TestAPlanIsMadeWithThePlaybook that the run will follow, so that a reviewer sees the same answers.
func TestAPlanIsMadeWithThePlaybook(t *testing.T) {
	t.Parallel()
	from := filepath.Join(fixture(t, "al9qy"), "input")
	answered := book(t, "  decisions: [{field: TRN-DOCKER-001, value: drop, reason: unused}]\n  accept: [{check: CHK-CP-001, reason: CHG-4711, until: 2026-12-31}]\n")
	type planned struct {
		Findings []struct{ ID, Severity string }
		Status   struct{ BlockedBy []string }
		Accepted []struct{ ID, Reason string }
	}
	read := func(args ...string) (p planned) {
		got := run(t, append([]string{"plan", "--from", from, "-o", "json"}, args...)...)
		require.Equal(t, CodeOK, got.code, got.stderr)
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &p))
		return p
	}
	assert.Subset(t, read().Status.BlockedBy, []string{"CHK-CP-001", "TRN-DOCKER-001"})
	with := read("--playbook", answered)
	assert.NotContains(t, with.Status.BlockedBy, "TRN-DOCKER-001")
	assert.NotContains(t, with.Status.BlockedBy, "CHK-CP-001")
	require.Len(t, with.Accepted, 1)
	assert.Equal(t, "CHG-4711", with.Accepted[0].Reason)
	nearer := read("--playbook", answered, "--accept", "CHK-CP-001=said here")
	require.Len(t, nearer.Accepted, 1)
	assert.Equal(t, "said here", nearer.Accepted[0].Reason)
	got := run(t, "check", "--from", from, "--playbook", book(t, "  decisions: [{field: TRN-DOCKER-001}]\n"))
	assert.Equal(t, CodeUsage, got.code)
	assert.Contains(t, got.stderr, "spec.decisions[0].reason: it is missing")
}

func isASCII(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII })
}

// TestTheInstallationsPlaybookLiesUnderWhatIsLookedAt, as under what is run: nights that it closes are not listed.
func TestTheInstallationsPlaybookLiesUnderWhatIsLookedAt(t *testing.T) {
	t.Parallel()
	own := book(t, "  windows: {timeZone: UTC, open: [{name: night, cron: '0 22 * * *', duration: 6h}]}\n")
	installation := filepath.Join(t.TempDir(), "installation.yaml")
	require.NoError(t, os.WriteFile(installation, []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec:\n  windows: {timeZone: UTC, closed: [{name: freeze, from: 2026-12-01, to: 2026-12-30}]}\n"), 0o600))
	app := App{Environ: []string{"MIGRATE_PLAYBOOK=" + installation}}
	got := runApp(t, app, "playbook", "windows", own, "--next", "1", "--from", "2026-12-02", "-o", "json")
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Contains(t, got.stdout, `"start": "2026-12-31T00:00:00Z"`, "the end of the night that the freeze covers the beginning of")
	assert.Contains(t, got.stdout, `"timeZone": "UTC"`)
	got = runApp(t, app, "playbook", "explain", own)
	assert.Contains(t, got.stdout, "freeze")
	got = runApp(t, app, "playbook", "lint", installation, own)
	assert.Equal(t, CodeOK, got.code, "one that is named is there once: %s%s", got.stdout, got.stderr)
}

func TestWhatNobodyWouldHearOrBeLetThroughByIsRefused(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"lint", "explain", "windows"} {
		got := run(t, "playbook", command, book(t, "  workers: {surgee: 2}\n"), "-o", "json")
		assert.Equal(t, CodeUsage, got.code, command)
		assert.Contains(t, got.stdout, `"mistakes": [`, "a program hears of them as well: %s", command)
	}
	for text, want := range map[string]string{
		"  hooks: [{name: a, \"on\": [hook.*], exec: [/bin/true]}]\n": "spec.hooks[0].on[0]: nobody is told of \"hook.*\"",
		"  approvals: [{gate: finalize, who: ops, validFor: 0s}]\n":   "spec.approvals[0].validFor: it is 0s",
		"  windows: {timeZone: UTC, closed: [{name: a, rrule: 'FREQ=YEARLY;BYMONTH=2;BYHOUR=0;BYMINUTE=0', start: 2026-01-30, duration: 1d}], open: [{name: n, cron: '0 22 * * *', duration: 6h}]}\n": "with this start and end it never happens",
	} {
		got := run(t, "playbook", "lint", book(t, text))
		assert.Equal(t, CodeUsage, got.code, text)
		assert.Contains(t, got.stderr, want)
	}
	got := run(t, "playbook", "lint", book(t, "  hooks: [{name: a, \"on\": ['*'], exec: [/bin/true]}]\n  approvals: [{gate: finalize, who: ops}]\n"))
	assert.Equal(t, CodeOK, got.code, got.stdout+got.stderr)
}
