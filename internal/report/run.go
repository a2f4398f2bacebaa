package report

import (
	"cmp"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

// What all renderings of a run share.

// The words of a run's outcome and direction, and of its steps' states, as history.RunReport lists them. A step is undoing while it is
// being taken back.
const (
	runOK      = "ok"
	runPaused  = "paused"
	runStopped = "stopped"
	runFailed  = "failed"

	runBack = "back"

	stepDone    = "done"
	stepUndone  = "undone"
	stepFailed  = "failed"
	stepRunning = "running"
	stepUndoing = "undoing"
	stepSkipped = "skipped"
	stepWaiting = "waiting"
)

func runMark(outcome string) mark {
	switch outcome {
	case runOK:
		return mark{"✓", "v", outcome, good}
	case runPaused:
		return mark{"–", "-", outcome, caution}
	case runStopped:
		return mark{"!", "!", outcome, caution}
	case runFailed:
		return mark{"×", "x", outcome, bad}
	}
	return mark{"?", "?", cmp.Or(outcome, "unknown"), plain}
}

func stepMark(state string) mark {
	switch state {
	case stepDone, stepUndone:
		return mark{"✓", "v", state, good}
	case stepFailed:
		return mark{"×", "x", state, bad}
	case stepRunning, stepUndoing:
		return mark{"±", "%", state, caution}
	case stepSkipped:
		return mark{"–", "-", state, caution}
	case stepWaiting:
		return mark{"·", ".", state, quiet}
	}
	return mark{"?", "?", cmp.Or(state, "unknown"), plain}
}

// stepNeedsLook tells whether a human has to look at the step: it is neither finished nor still to come.
func stepNeedsLook(s history.Step) bool {
	switch s.State {
	case stepDone, stepUndone, stepWaiting:
		return false
	}
	return true
}

// stepCounts are in the order of importance. A state that is not known is not counted as any other.
func stepCounts(steps []history.Step) []count {
	n := map[string]int{}
	for _, s := range steps {
		n[s.State]++
	}
	return []count{
		{n[stepFailed], stepMark(stepFailed), "could not be done"},
		{n[stepRunning], stepMark(stepRunning), "the run ended in them"},
		{n[stepUndoing], stepMark(stepUndoing), "the run ended while taking them back"},
		{n[stepDone], stepMark(stepDone), "and verified"},
		{n[stepUndone], stepMark(stepUndone), "taken back"},
		{n[stepSkipped], stepMark(stepSkipped), "left out, because people said so"},
		{n[stepWaiting], stepMark(stepWaiting), "not begun"},
	}
}

func allSteps(phases []history.Phase) []history.Step {
	var all []history.Step
	for _, p := range phases {
		all = append(all, p.Steps...)
	}
	return all
}

// stepSum is "1 failed, 3 done".
func stepSum(steps []history.Step, separator string) string {
	return cmp.Or(sumUp(stepCounts(steps), separator), "no steps")
}

// runNoun says what kind of run it was.
func runNoun(r *history.RunReport) string {
	if r.Direction == runBack {
		return "rollback"
	}
	return "run"
}

// wholePhases leaves the phases that Options.Only names.
func wholePhases(r *history.RunReport, only string) ([]history.Phase, error) {
	names := make([]string, len(r.Phases))
	for i, p := range r.Phases {
		names[i] = p.Name
	}
	positions, err := choosePositions(names, only)
	if err != nil {
		return nil, err
	}
	out := make([]history.Phase, 0, len(positions))
	for _, i := range positions {
		out = append(out, r.Phases[i])
	}
	return out, nil
}

// stepTook is how long the step took, if that can be said: a step that several runs have tried has the time between them in it, in which nothing was done, and so has one
// that was done and taken back.
func stepTook(r *history.RunReport, s history.Step) (time.Duration, bool) {
	took, err := time.ParseDuration(s.Took)
	if err != nil || took < 0 || s.FinishedAt == nil || s.StartedAt == nil {
		return 0, false
	}
	return took, s.Runs < 2 && (!s.StartedAt.Before(r.StartedAt) || earlier(r, s))
}

// earlier tells that the step ended in a run before this one.
func earlier(r *history.RunReport, s history.Step) bool {
	return s.FinishedAt != nil && s.FinishedAt.Before(r.StartedAt)
}

// spokenTook is the step's time as text; empty when there is none to tell.
func spokenTook(r *history.RunReport, s history.Step) string {
	if took, ok := stepTook(r, s); ok {
		return spokenDuration(took.String())
	}
	return ""
}

// planned is what was thought of the steps whose time can be told, as "planned 12 min, at most 30 min"; empty when nothing was. What goes side by side was thought to take its share of
// the sum, because every node has a time of its own and the plan's figures know of no other.
func planned(r *history.RunReport, steps ...history.Step) string {
	var usual, most time.Duration
	var timed []history.Step
	for _, s := range steps {
		if _, ok := stepTook(r, s); !ok || s.Planned == nil {
			continue
		}
		p50, err := time.ParseDuration(s.Planned.P50)
		p90, err2 := time.ParseDuration(s.Planned.P90)
		if err == nil && err2 == nil {
			usual, most, timed = usual+p50, most+p90, append(timed, s)
		}
	}
	if len(timed) == 0 {
		return ""
	}
	if sum, passed := elapsed(r, timed); passed < sum {
		share := float64(passed) / float64(sum)
		usual, most = time.Duration(float64(usual)*share).Round(time.Second), time.Duration(float64(most)*share).Round(time.Second)
	}
	if usual == most {
		return "planned " + spokenDuration(usual.String())
	}
	return "planned " + spokenDuration(usual.String()) + ", at most " + spokenDuration(most.String())
}

// phaseTimes is what a phase took, beside what was planned for it.
func phaseTimes(r *history.RunReport, steps []history.Step) string {
	return joinNonEmpty(", ", phaseTook(r, steps), planned(r, steps...))
}

// isNode tells of a step that replaces a node: what was planned for it is shown always.
func isNode(s history.Step) bool { return plan.ReplacesWorker(s.ID) }

// phaseTook is how long the steps took together. What goes side by side counts once, and the time between two runs not at all.
func phaseTook(r *history.RunReport, steps []history.Step) string {
	sum, passed := elapsed(r, steps)
	if sum < 0 {
		return ""
	}
	return spokenDuration(passed.String())
}

// elapsed are the sum of the times of the steps, negative when none can be told, and the time in which at least one of them was at work.
func elapsed(r *history.RunReport, steps []history.Step) (sum, passed time.Duration) {
	type span struct{ from, until time.Time }
	var spans []span
	for _, s := range steps {
		if took, ok := stepTook(r, s); ok {
			sum, spans = sum+took, append(spans, span{s.FinishedAt.Add(-took), *s.FinishedAt})
		}
	}
	if len(spans) == 0 {
		return -1, 0
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	end := spans[0].from
	for _, s := range spans {
		if s.from.After(end) {
			end = s.from
		}
		if s.until.After(end) {
			passed, end = passed+s.until.Sub(end), s.until
		}
	}
	return sum, passed
}

// runTook is how long the whole run took.
func runTook(r *history.RunReport) string {
	if r.StartedAt.IsZero() || r.FinishedAt.Before(r.StartedAt) {
		return ""
	}
	return spokenDuration(r.FinishedAt.Sub(r.StartedAt).String())
}

// stepNotes is what there is to say of a step beside its title and time.
func stepNotes(r *history.RunReport, s history.Step) string {
	tries := ""
	if s.Attempts > 1 {
		tries = strconv.Itoa(s.Attempts) + " tries"
	}
	before := ""
	if earlier(r, s) {
		before = "in an earlier run"
	}
	plans := ""
	if isNode(s) {
		plans = planned(r, s)
	}
	return joinNonEmpty(", ", tries, before, plans)
}

// noteText is a note with its time.
func noteText(n history.Note) string { return exact(n.At) + " " + n.Text }

// writesText is "61, of which 40 apply, 21 patch".
func writesText(w history.Writes) string {
	parts := make([]string, 0, len(w.ByOne))
	for _, verb := range slices.Sorted(maps.Keys(w.ByOne)) {
		parts = append(parts, strconv.Itoa(w.ByOne[verb])+" "+verb)
	}
	return joinNonEmpty(": ", plural(w.Total, "request")+" changed something", strings.Join(parts, ", "))
}

// runMessage is how the run ended. What a failed step says stands with the step, so it is not said twice.
func runMessage(r *history.RunReport) string {
	for _, s := range allSteps(r.Phases) {
		if s.State != stepFailed || r.Message != s.ID+": "+s.Message {
			continue
		}
		if r.Direction == runBack {
			return "step " + s.ID + " could not be taken back"
		}
		return "step " + s.ID + " could not be done"
	}
	return cmp.Or(r.Message, "how it ended is not recorded")
}

// nextAfterRun says what to do now and, where there is one, with which command. Without its goal a run would end before what it was at.
func nextAfterRun(r *history.RunReport, o Options) (advice, command string) {
	if r.Proof != nil && r.Proof.Outcome == proof.Touched {
		return nextAfterProof(r.Proof), ""
	}
	switch r.Outcome {
	case runPaused, runStopped, runFailed:
		advice, command = nextAfterRest(r, o)
	case runOK:
		advice, command = nextAfterSuccess(r)
	default:
		advice, command = "see where the cluster stands", "migrate status "+r.Cluster
	}
	if command != "" {
		command = o.command(command, "")
	}
	return advice, command
}

// nextAfterRest is how to go on from where a run or a rollback did not get where it was to go.
func nextAfterRest(r *history.RunReport, o Options) (advice, command string) {
	again := forward("run", r.Cluster, r.Until)
	switch {
	case r.Direction == runBack && r.Final:
		return urgently(r, "go forward, because the point of no return is passed"), forward("run", r.Cluster, plan.PhaseControlPlane)
	case r.Direction == runBack:
		again = backTo(r.Cluster, r.To)
	}
	switch {
	case r.Outcome == runPaused && r.Direction != runBack:
		return urgently(r, "go on"), forward("resume", r.Cluster, r.Until)
	case r.Outcome != runFailed:
		return urgently(r, "go on"), again
	case r.Direction == runBack:
		return urgently(r, "remove what was in the way, then go on"), again
	case r.Final:
		return urgently(r, "remove what was in the way and go on; the point of no return is passed"), again
	case replaces(r):
		return urgently(r, "remove what was in the way and go on ("+o.command(backTo(r.Cluster, plan.PhaseAdopt), "")+" takes back what came after the adoption)"), again
	}
	return urgently(r, "remove what was in the way and go on ("+o.command(backTo(r.Cluster, ""), "")+" takes everything back)"), again
}

// forward is the command that goes on up to a phase.
func forward(verb, cluster, until string) string {
	if until != "" {
		until = " --until " + until
	}
	return "migrate " + verb + " " + cluster + until
}

// backTo is the command that takes back what came after a phase.
func backTo(cluster, keep string) string {
	if keep != "" {
		keep = " --to " + keep
	}
	return "migrate rollback " + cluster + keep
}

// urgently says first when a cluster must not be left as it is.
func urgently(r *history.RunReport, advice string) string {
	if r.Exposed {
		return "do not rest here, because etcd needs both control plane machines: " + advice
	}
	return advice
}

// replaces tells that something behind the adoption was begun and not taken back.
func replaces(r *history.RunReport) bool {
	at := slices.IndexFunc(r.Phases, func(p history.Phase) bool { return p.Name == plan.PhaseAdopt })
	return at >= 0 && slices.ContainsFunc(allSteps(r.Phases[at+1:]), func(s history.Step) bool { return s.State != stepWaiting && s.State != stepUndone })
}

// nextPhase is the first phase behind the adoption with something left to do; empty when there is none, and before: a run that is told nothing adopts.
func nextPhase(r *history.RunReport) string {
	at := slices.IndexFunc(r.Phases, func(p history.Phase) bool { return p.Name == plan.PhaseAdopt })
	for i, p := range r.Phases {
		if slices.ContainsFunc(p.Steps, func(s history.Step) bool { return s.State != stepDone && s.State != stepSkipped }) {
			if i <= at {
				return ""
			}
			return p.Name
		}
	}
	return ""
}

func nextAfterSuccess(r *history.RunReport) (advice, command string) {
	steps := allSteps(r.Phases)
	in := func(state string) func(history.Step) bool {
		return func(s history.Step) bool { return s.State == state }
	}
	switch {
	case r.Direction == runBack && slices.ContainsFunc(steps, in(stepDone)):
		// A rollback pauses the cluster.
		return "go on from there", forward("resume", r.Cluster, nextPhase(r))
	case r.Direction == runBack:
		return "keep this document; when it is to be tried again, begin with a plan", "migrate plan " + r.Cluster
	case r.Proof != nil && r.Proof.Outcome != proof.Untouched:
		return nextAfterProof(r.Proof), "migrate proof " + r.Cluster
	case finalized(r):
		return "keep this document: nothing of the old platform is left", ""
	case slices.ContainsFunc(steps, in(stepWaiting)):
		return "go on with the next phase", forward("run", r.Cluster, nextPhase(r))
	case r.Proof == nil:
		return "prove that nothing was restarted", "migrate proof " + r.Cluster
	}
	return nextAfterProof(r.Proof), ""
}

// finalized tells that the last phase was done to its end.
func finalized(r *history.RunReport) bool {
	if len(r.Phases) == 0 {
		return false
	}
	last := r.Phases[len(r.Phases)-1]
	return last.Name == plan.PhaseFinalize && len(last.Steps) > 0 && !slices.ContainsFunc(last.Steps, func(s history.Step) bool { return s.State != stepDone && s.State != stepSkipped })
}

// nameRun lists the ids of the steps; with Short only those a human has to look at.
func nameRun(w io.Writer, doc *history.RunReport, o Options) error {
	phases, err := wholePhases(doc, o.Only)
	if err != nil {
		return err
	}
	var names []string
	for _, s := range allSteps(phases) {
		if !o.Short || stepNeedsLook(s) {
			names = append(names, s.ID)
		}
	}
	return writeNames(w, names, o)
}
