package adoption

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

var world *migrationtest.World

const (
	// programEnv makes the test binary the program, for what another process has to do.
	programEnv = "ADOPTION_MIGRATE"
	// aheadEnv is how far the clocks are ahead of everybody else's that the process has and asks: it runs in another night.
	aheadEnv = "ADOPTION_AHEAD"
)

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		cli.PrepareProcess()
		app := cli.App{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ(), Version: cli.Version{Version: "v0.0.0-test"}}
		if by, err := time.ParseDuration(os.Getenv(aheadEnv)); err == nil {
			app.Clock = &jumping{offset: by}
			app.Wrap = func(next http.RoundTripper) http.RoundTripper { return laterAnswers{next, by} }
		}
		os.Exit(int(cli.Run(context.Background(), app, os.Args[1:])))
	}
	os.Exit(migrationtest.Main(m, func(w *migrationtest.World) { world = w }))
}

// operator is a person with a machine who migrates one cluster.
type operator struct {
	name string
	// wrap sees every request.
	wrap func(http.RoundTripper) http.RoundTripper
	// clock is the machine's; nil is a right one.
	clock clock.WithTicker
	// apart has every command be a process of its own.
	apart bool
	// hard ends the work at once; nil never.
	hard context.Context //nolint:containedctx // it stands for a second Ctrl-C
	// told, unless it is nil, gets all that commands say, and runs say what they ask API servers.
	told *strings.Builder
	// env is what the environment has besides the usual.
	env []string
	dir string
	c   *migrationtest.Cluster
}

func newOperator(tb testing.TB, c *migrationtest.Cluster, name string) *operator {
	tb.Helper()
	dir := tb.TempDir()
	raw, err := world.Management.KubeconfigFor(name, "system:masters")
	require.NoError(tb, err)
	var decisions strings.Builder
	decisions.WriteString("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Decisions\ndecisions:\n")
	for field, answer := range c.Answers() {
		decisions.WriteString("  " + field + ": {value: " + answer.Value + ", reason: " + answer.Reason + "}\n")
	}
	for file, content := range map[string][]byte{"kubeconfig": raw, "ca.crt": c.CACert, "ca.key": c.CAKey, "decisions.yaml": []byte(decisions.String())} {
		require.NoError(tb, os.WriteFile(filepath.Join(dir, file), content, 0o600))
	}
	return &operator{name: name, dir: dir, c: c}
}

// decide adds an answer to those that a cluster needs.
func (o *operator) decide(tb testing.TB, question, answer, reason string) {
	tb.Helper()
	file := filepath.Join(o.dir, "decisions.yaml")
	decisions, err := os.ReadFile(file)
	require.NoError(tb, err)
	require.NoError(tb, os.WriteFile(file, append(decisions, "  "+question+": {value: "+answer+", reason: "+reason+"}\n"...), 0o600))
}

// migrate runs the program and returns what it said.
func (o *operator) migrate(ctx context.Context, args ...string) (code cli.Code, stdout, stderr string) {
	var out, errs bytes.Buffer
	args = append(args, "--kubeconfig", filepath.Join(o.dir, "kubeconfig"))
	if o.apart {
		self, err := os.Executable()
		if err != nil {
			return cli.CodeError, "", err.Error()
		}
		command := exec.CommandContext(ctx, self, args...)
		command.Env, command.Stdout, command.Stderr = append([]string{"USER=" + o.name, "CI=true", programEnv + "=1"}, o.env...), &out, &errs
		if err := command.Run(); command.ProcessState == nil {
			return cli.CodeError, "", err.Error()
		}
		return cli.Code(command.ProcessState.ExitCode()), out.String(), errs.String()
	}
	code = cli.Run(ctx, cli.App{
		Out: &out, Err: &errs, Environ: append([]string{"USER=" + o.name, "CI=true"}, o.env...), Wrap: o.wrap, Hard: o.hard, Clock: o.clock,
		Version: cli.Version{Version: "v0.0.0-test"},
	}, args)
	if o.told != nil {
		_, _ = o.told.WriteString(out.String() + errs.String()) // It never fails.
	}
	return code, out.String(), errs.String()
}

// run runs the migration with everything a run of this cluster needs.
func (o *operator) run(ctx context.Context, more ...string) (code cli.Code, stdout, stderr string) {
	return o.forward(ctx, "run", more)
}

// patience ends what hangs, and nothing else: a step that is told to try again on a busy machine looks as if it had failed.
const patience = "5m"

// resume is run where people have taken back before.
func (o *operator) resume(ctx context.Context, more ...string) (code cli.Code, stdout, stderr string) {
	return o.forward(ctx, "resume", more)
}

func (o *operator) forward(ctx context.Context, command string, more []string) (code cli.Code, stdout, stderr string) {
	args := []string{
		command, o.c.ID, "--yes", "--ca-cert", filepath.Join(o.dir, "ca.crt"), "--ca-key", filepath.Join(o.dir, "ca.key"),
		"--decisions", filepath.Join(o.dir, "decisions.yaml"), "--settle", "200ms", "--patience", patience, "-o", "json",
	}
	if o.told != nil {
		args = append(args, "-v", "6")
	}
	for _, a := range o.c.Acceptances() {
		args = append(args, "--accept", a.ID+"="+a.Reason)
	}
	return o.migrate(ctx, append(args, more...)...)
}

func (o *operator) rollback(ctx context.Context, more ...string) (code cli.Code, stdout, stderr string) {
	return o.migrate(ctx, append([]string{"rollback", o.c.ID, "--yes", "--patience", patience, "-o", "json"}, more...)...)
}

// reader reads what the migration keeps about itself.
func reader(t *testing.T) client.Reader {
	t.Helper()
	live, err := kube.ForConfig(world.Management.As(t, "looker", "system:masters"), kube.Options{})
	require.NoError(t, err)
	return live.Reader
}

func decode(tb testing.TB, stdout string) history.RunReport {
	tb.Helper()
	var r history.RunReport
	decodeInto(tb, stdout, &r)
	return r
}

func decodeInto(tb testing.TB, stdout string, document any) {
	tb.Helper()
	require.NoError(tb, json.Unmarshal([]byte(stdout), document), stdout)
}

// mine is the state without what the migration keeps about itself.
func mine(s migrationtest.State) migrationtest.State {
	return s.Only(func(key string) bool {
		return !strings.Contains(key, "ClusterMigration") && !strings.Contains(key, "-migration") && !strings.Contains(key, " Lease")
	})
}

func TestAdoptAndGiveBack(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 2})
	o := newOperator(t, c, "ada")
	before, pods, nodes := c.State(t), c.Pods(t), c.Nodes(t)

	code, stdout, stderr := o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, stderr)
	report := decode(t, stdout)
	assert.Equal(t, "ok", report.Outcome)
	require.NotNil(t, report.Proof)
	assert.NotEqual(t, proof.Touched, report.Proof.Outcome, stdout)
	assert.Regexp(t, `the private key of the cluster's CA was read by ada@\S+ from files \S+/ca.crt and \S+/ca.key; Secrets of namespace `+c.Namespace+` hold it now`, stdout)
	for id, pod := range c.Pods(t) {
		assert.Equal(t, pods[id].UID, pod.UID, id)
		assert.Empty(t, pod.OwnerReferences, id)
		require.NotEmpty(t, pod.Spec.Tolerations, id)
		for _, toleration := range pod.Spec.Tolerations {
			assert.Nil(t, toleration.TolerationSeconds, "Kubernetes takes none from a host that does not answer")
		}
	}
	for id, node := range c.Nodes(t) {
		assert.Equal(t, nodes[id].UID, node.UID)
		assert.NotEmpty(t, node.Spec.ProviderID)
	}

	code, stdout, _ = o.migrate(t.Context(), "proof", c.ID)
	assert.NotEqual(t, cli.CodeBlocked, code, stdout)
	code, _, stderr = o.migrate(t.Context(), "status", c.ID)
	require.Equal(t, cli.CodeOK, code, stderr)

	code, stdout, stderr = o.rollback(t.Context())
	require.Equal(t, cli.CodeOK, code, stderr)
	assert.Equal(t, "back", decode(t, stdout).Direction)
	for id, pod := range c.Pods(t) {
		assert.Equal(t, pods[id].UID, pod.UID, id)
		assert.NotEmpty(t, pod.OwnerReferences, id)
	}
	assertGivenBack(t, c, before)
}

// assertGivenBack says that the cluster is as it was before: only provider IDs stay, which can never be removed, and the namespace with the
// record of the migration.
func assertGivenBack(t *testing.T, c *migrationtest.Cluster, before migrationtest.State) {
	t.Helper()
	for line := range strings.Lines(mine(before).Diff(mine(c.State(t)))) {
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(text, "+ management Namespace/"+c.Namespace), strings.HasPrefix(text, "~ workload Node/"),
			strings.Contains(text, "providerID: kvm://"+c.ID+"/"), text == "spec:", text == "- spec: {}", text == "+ spec:",
			// Kubernetes makes a new mirror of Endpoints that have changed.
			strings.Contains(text, " management EndpointSlice/"+c.ID+"/master-"):
		default:
			assert.Fail(t, "a rollback leaves something behind", line)
		}
	}
	object, err := migrate.Read(t.Context(), reader(t), c.Namespace, c.ID)
	require.NoError(t, err)
	assert.Equal(t, migrationv1alpha1.StateRolledBack, object.Status.State)
}

// TestTakenBackToTheFenceAndForwardAgain goes forward from a rollback that leaves the operators silent: the Deployments that it has made again are its own. What others keep in the cluster's
// namespace stays all the while.
func TestTakenBackToTheFenceAndForwardAgain(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	management, err := client.New(world.Management.As(t, "neighbour", "system:masters"), client.Options{})
	require.NoError(t, err)
	theirs := map[string]string{"app": "app-operator"}
	stranger := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ID, Name: "app-operator", Labels: theirs},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: theirs}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: theirs}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "operator", Image: "example.com/operator:1"}}},
		}},
	}
	require.NoError(t, management.Create(t.Context(), stranger))
	now := &appsv1.Deployment{}
	require.Eventually(t, func() bool {
		err := management.Get(t.Context(), client.ObjectKeyFromObject(stranger), now)
		return err == nil && now.Status.TerminatingReplicas != nil && slices.ContainsFunc(now.Status.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Reason == "NewReplicaSetAvailable" })
	}, time.Minute, 100*time.Millisecond, "Kubernetes has nothing more to say of it")
	before := c.State(t)
	o := newOperator(t, c, "hesitant")
	code, _, said := o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	code, _, said = o.rollback(t.Context(), "--to", "fence")
	require.Equal(t, cli.CodeOK, code, said)
	code, _, said = o.resume(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	require.NoError(t, management.Get(t.Context(), client.ObjectKeyFromObject(stranger), now))
	assert.Equal(t, stranger.UID, now.UID)
	code, _, said = o.rollback(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	assertGivenBack(t, c, before)
}

// TestAFreshPlanOfALockedClusterHasNothingToDo plans an adopted cluster: of fence, translate and adopt nothing is left to do.
func TestAFreshPlanOfALockedClusterHasNothingToDo(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, c, "ida")
	code, _, stderr := o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, stderr)
	// What was decided is on record.
	code, stdout, stderr := o.migrate(t.Context(), "plan", c.ID, "-o", "json", "--ca-cert", filepath.Join(o.dir, "ca.crt"), "--ca-key", filepath.Join(o.dir, "ca.key"))
	require.Equal(t, cli.CodeOK, code, stderr)
	var fresh plan.Plan
	require.NoError(t, json.Unmarshal([]byte(stdout), &fresh))
	for _, change := range fresh.Changes {
		if change.Action != plan.Keep {
			assert.NotContains(t, []string{plan.PhaseFence, plan.PhaseTranslate, plan.PhaseAdopt}, change.Phase, "%s %s %+v", change.Action, change.Object, change.Fields)
		}
	}
	for _, command := range [][]string{{"plan", c.ID}, {"run", c.ID, "--yes"}} {
		code, _, stderr = o.migrate(t.Context(), append(command, "--image", "another-{version}")...)
		assert.Equal(t, cli.CodeError, code)
		assert.Contains(t, stderr, `the migration has begun with something else, which cannot be changed on the way: --image is "another-{version}", and was ""`)
	}
}

// TestAPlaybookThatHasGrownIsInNobodysWayBack: other clusters need a decision more. A run that goes forward is refused for it, whose translation it would change; a rollback goes by what the migration
// began with.
func TestAPlaybookThatHasGrownIsInNobodysWayBack(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	before := c.State(t)
	o := newOperator(t, c, "edith")
	code, _, stderr := o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, stderr)
	book := []string{"--playbook", o.book(t, "grown", -time.Hour, time.Hour, "  decisions: [{field: TRN-ISCSI-001, value: keep, reason: CHG-4712}]\n")}
	code, _, stderr = o.run(t.Context(), book...)
	assert.Equal(t, cli.CodeError, code)
	assert.Contains(t, stderr, `the decision for TRN-ISCSI-001 is "keep", and was ""`)
	code, _, stderr = o.rollback(t.Context(), book...)
	require.Equal(t, cli.CodeOK, code, stderr)
	assertGivenBack(t, c, before)
}
