package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/forecast"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/nameserver"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pki"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// examineFlags are the flags check and plan share: where the CA is, what was decided, what the new cluster is to be.
type examineFlags struct {
	caCert, caKey, caSecret, caVault string

	accept      []string
	acceptUntil string
	decisions   string

	targetNamespace, kubernetesVersion, image, imageRepository string

	bookFlags
}

// bookFlags name a playbook.
type bookFlags struct {
	// bookFiles are the files of a playbook, and sets single values of it.
	bookFiles, sets []string
}

func (f *bookFlags) hasBook() bool { return len(f.bookFiles)+len(f.sets) > 0 }

func (f *bookFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.bookFiles, "playbook", nil, "file with a playbook: what was answered and accepted and, for a run, windows, soak times and order; repeatable, later ones over earlier ones, and flags over both")
	cmd.Flags().StringArrayVar(&f.sets, "set", nil, "one value of the playbook: spec.soak.perWorker=5m; repeatable")
}

func (f *examineFlags) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.caCert, "ca-cert", "", "file with the cluster's CA certificate; {cluster} stands for the cluster's id")
	flags.StringVar(&f.caKey, "ca-key", "", "file with the CA's private key; it is verified and never printed")
	flags.StringVar(&f.caSecret, "ca-secret", "", "Secret [NAMESPACE/]NAME of the management cluster with the CA's key pair")
	flags.StringVar(&f.caVault, "ca-vault", "", "path of Vault with the CA's key pair, for example pki-{cluster}/gimmeallyourlovin; VAULT_ADDR and VAULT_TOKEN say where")
	flags.StringVar(&f.decisions, "decisions", "", "file with answers to open decisions (kind Decisions)")
	f.bookFlags.addTo(cmd)
	flags.StringArrayVar(&f.accept, "accept", nil, "let a check warn instead of block: ID=REASON; repeatable")
	flags.StringVar(&f.acceptUntil, "accept-until", "", "when the acceptances end: 2026-12-31 or 2026-12-31T18:00:00Z (default: with the plan)")
	flags.StringVar(&f.targetNamespace, "target-namespace", "", "namespace of the Cluster API objects (default: org-<organization>)")
	flags.StringVar(&f.kubernetesVersion, "kubernetes-version", "", "version of the first new control plane (default: one minor above the running one)")
	flags.StringVar(&f.image, "image", "", "image of new machines; {version} stands for the Kubernetes version (default: kubernetes-{version})")
	flags.StringVar(&f.imageRepository, "image-repository", "", "registry of the control plane's images (default: registry.k8s.io)")
	complete(cmd, "accept", completeAccept)
}

// check finds what is wrong with the flags before anything is read. In the translation it would look like a mistake in the cluster's objects.
func (f *examineFlags) check() error {
	if err := checkNamespace(f.targetNamespace); err != nil {
		return err
	}
	if f.kubernetesVersion == "" {
		return nil
	}
	if _, err := version.ParseSemantic(strings.TrimPrefix(f.kubernetesVersion, "v")); err != nil {
		return usage("", "--kubernetes-version is %q; it must be a whole version like 1.22.17 or v1.22.17", f.kubernetesVersion)
	}
	return nil
}

// checkNamespace is about --target-namespace.
func checkNamespace(name string) error {
	if name == "" || len(validation.IsDNS1123Label(name)) == 0 {
		return nil
	}
	return usage("", "--target-namespace is %q; it must be the name of a namespace like org-acme: up to %d lower-case letters, digits and -, with a letter or digit at both ends", name, validation.DNS1123LabelMaxLength)
}

// examiner looks at clusters one by one. It is safe for concurrent use.
type examiner struct {
	place      *place
	fleet      *legacy.Fleet
	neighbours []check.Neighbour
	translator *translate.Translator
	opts       translate.Options
	accept     []check.Accepted
	only       []string
	// together is how many workers are replaced at the same time, as far as it was said.
	together int
	// controlPlanes is how many control plane machines somebody has asked for.
	controlPlanes int
	authority     func(id string) pki.Source
	// etcd makes a client of a cluster's etcd; nil offline.
	etcd func(*legacy.Cluster) (*etcd.Client, error)
	// inside connects to the workload cluster; nil offline.
	inside func(*legacy.Cluster) (*kube.ReadOnly, error)
	// resolve asks a name server; nil offline, and where people name another way to the workload cluster than its name: name servers that know the cluster's machines would not be asked from there.
	resolve check.AskName
	now     time.Time
	tool    string
	// validFor is how long plans are valid; zero for the default.
	validFor time.Duration
	log      logrus.FieldLogger
	// recorded tells that the source shows the cluster as it was before its migration already.
	recorded bool

	// elsewhere guards the list of all migrations, which is read when it is needed first.
	elsewhere     sync.Once
	migrations    []migrationv1alpha1.ClusterMigration
	migrationsErr error
}

// examination is everything known about one cluster.
type examination struct {
	// cluster is the legacy cluster as it was before its migration, now is what there is of it.
	cluster, now *legacy.Cluster
	result       *translate.Result
	report       check.Report
	// caKey tells that the CA's key was given and is the right one.
	caKey bool
	// authority says where that key was read.
	authority string
}

// examiner reads what the flags name and all clusters share. Whatever is wrong with the flags is found here, before any cluster is read.
func (s *session) examiner(ctx context.Context, p *place, ids []string, f examineFlags) (*examiner, error) {
	e := &examiner{
		place: p, translator: translate.New(), now: s.now, tool: s.app.Version.Version, log: s.log,
		opts: translate.Options{
			Namespace: f.targetNamespace, KubernetesVersion: f.kubernetesVersion, Image: f.image, ImageRepository: f.imageRepository,
		},
	}
	if err := e.decide(f); err != nil {
		return nil, err
	}
	var err error
	if e.authority, err = s.authority(f); err != nil {
		return nil, err
	}
	if e.fleet, err = p.Fleet(ctx); err != nil {
		return nil, err
	}
	if p.live == nil {
		e.neighbours = neighboursOf(ctx, p, ids)
	} else {
		e.etcd, e.inside = s.etcd, s.inside
		if !s.namesWorkload() {
			e.resolve = (&nameserver.Resolver{}).Ask
		}
	}
	return e, ctx.Err()
}

// decide reads acceptances and answers.
func (e *examiner) decide(f examineFlags) error {
	if err := e.decideByFlags(f); err != nil || !f.hasBook() {
		return err
	}
	effective, err := readBook(f.bookFiles, f.sets)
	if err != nil {
		return err
	}
	book, err := said(effective)
	if err != nil {
		return err
	}
	e.addBook(book)
	e.together = max(effective.Spec.Workers.Surge, effective.Spec.Workers.Concurrency)
	e.controlPlanes = effective.Spec.ControlPlane.Replicas
	return nil
}

func (e *examiner) decideByFlags(f examineFlags) error {
	var err error
	if e.accept, err = parseAccept(f.accept, f.acceptUntil); err != nil {
		return err
	}
	if f.decisions == "" {
		return nil
	}
	data, err := readSmallFile(f.decisions)
	if err != nil {
		return fmt.Errorf("reading the decisions: %w", err)
	}
	decisions, err := ParseDecisions(f.decisions, data)
	if err != nil {
		return err
	}
	e.opts.Answers = decisions.Answers
	// The command line is nearer than the file.
	for _, waiver := range decisions.Accept {
		if !slices.ContainsFunc(e.accept, func(have check.Accepted) bool { return have.ID == waiver.ID }) {
			e.accept = append(e.accept, waiver)
		}
	}
	return nil
}

// addBook adds what a playbook says, where nothing nearer says it.
func (e *examiner) addBook(book Decisions) {
	if len(book.Answers) > 0 {
		answers := maps.Clone(book.Answers)
		maps.Copy(answers, e.opts.Answers)
		e.opts.Answers = answers
	}
	for _, waiver := range book.Accept {
		if !slices.ContainsFunc(e.accept, func(have check.Accepted) bool { return have.ID == waiver.ID }) {
			e.accept = append(e.accept, waiver)
		}
	}
}

// parseAccept reads ID=REASON pairs.
func parseAccept(pairs []string, until string) ([]check.Accepted, error) {
	var ends *time.Time
	if until != "" {
		at, err := parseUntil(until)
		if err != nil {
			return nil, usage("", "--accept-until %s", err)
		}
		ends = &at
	}
	var accepted []check.Accepted
	for _, pair := range pairs {
		id, reason, ok := strings.Cut(pair, "=")
		if id, reason = strings.TrimSpace(id), strings.TrimSpace(reason); !ok || id == "" || reason == "" {
			return nil, usage(`--accept CHK-CP-001="agreed with the customer, CHG-4711"`, "--accept %q has no reason", pair)
		}
		accepted = append(accepted, check.Accepted{ID: id, Reason: reason, Until: ends})
	}
	return accepted, nil
}

// authority returns where the CA of a cluster is read from; nil when no flag says.
func (s *session) authority(f examineFlags) (func(id string) pki.Source, error) {
	ways := 0
	for _, given := range []bool{f.caCert != "" || f.caKey != "", f.caSecret != "", f.caVault != ""} {
		if given {
			ways++
		}
	}
	fill := func(text, id string) string { return strings.ReplaceAll(text, clusterPlaceholder, id) }
	switch {
	case ways == 0:
		return nil, nil
	case ways > 1:
		return nil, usage("", "the CA can be given as files, as a Secret or by Vault, not in several ways")
	case f.caCert != "" || f.caKey != "":
		if f.caCert == "" || f.caKey == "" {
			return nil, usage("--ca-cert ca.crt --ca-key ca.key", "--ca-cert and --ca-key belong together")
		}
		return func(id string) pki.Source { return pki.Files{Certificate: fill(f.caCert, id), Key: fill(f.caKey, id)} }, nil
	case f.caSecret != "":
		return s.authorityInSecret(f.caSecret, fill)
	default:
		address, token := s.env["VAULT_ADDR"], pki.NewToken(s.env["VAULT_TOKEN"])
		if address == "" || token.Empty() {
			return nil, usage("export VAULT_ADDR=… VAULT_TOKEN=…", "--ca-vault needs VAULT_ADDR and VAULT_TOKEN")
		}
		return func(id string) pki.Source {
			return pki.Vault{
				Address: address, Token: token, CAFile: s.env["VAULT_CACERT"], Namespace: s.env["VAULT_NAMESPACE"], Path: fill(f.caVault, id),
			}
		}, nil
	}
}

// authorityInSecret reads the CA from a Secret of the management cluster, NAMESPACE/NAME or NAME.
func (s *session) authorityInSecret(reference string, fill func(text, id string) string) (func(id string) pki.Source, error) {
	namespace, name, ok := strings.Cut(reference, "/")
	if !ok {
		namespace, name = "", reference
	}
	live, err := s.connect()
	if err != nil {
		return nil, fmt.Errorf("looking for Secret %s: %w", reference, err)
	}
	if namespace == "" {
		if namespace, _, err = s.kube.ToRawKubeConfigLoader().Namespace(); err != nil {
			return nil, fmt.Errorf("looking for Secret %s: %w", reference, err)
		}
	}
	return func(id string) pki.Source {
		return pki.Secret{Reader: live.Reader, Namespace: fill(namespace, id), Name: fill(name, id)}
	}, nil
}

// neighboursOf reads of every cluster of a snapshot what could be in another one's way.
func neighboursOf(ctx context.Context, p *place, ids []string) []check.Neighbour {
	found := make([]*check.Neighbour, len(ids))
	pool(ctx, len(ids), func(i int) {
		if cluster, err := legacy.LoadInventory(ctx, p.Source, ids[i]); err == nil {
			neighbour := check.DescribeNeighbour(cluster)
			found[i] = &neighbour
		}
	})
	neighbours := []check.Neighbour{}
	for _, neighbour := range found {
		if neighbour != nil {
			neighbours = append(neighbours, *neighbour)
		}
	}
	return neighbours
}

// pool does work items side by side, one per processor at a time, and stops handing out when the context ends.
func pool(ctx context.Context, n int, work func(i int)) {
	next := make(chan int)
	var group sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		group.Go(func() {
			for i := range next {
				work(i)
			}
		})
	}
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	group.Wait()
}

// examine looks at one cluster: read, CA, translate, gather what only a live management cluster tells, check.
func (e *examiner) examine(ctx context.Context, id string) (*examination, error) {
	started := time.Now() //nolint:forbidigo // a duration for the log, which nothing depends on.
	now, err := e.place.Load(ctx, id)
	if err != nil {
		return nil, err
	}
	log := e.log.WithField("cluster", id)
	cluster, stage, options, err := e.asBefore(ctx, now)
	if err != nil {
		return nil, err
	}
	log.WithField("took", time.Since(started)).WithField("problems", len(cluster.Problems)).Debug("cluster read")

	facts := check.Facts{Cluster: cluster, Fleet: e.fleet, Now: e.now, Namespace: options.Namespace, Source: e.place.Describe(), Tool: e.tool, Together: e.together, ControlPlanes: e.controlPlanes, Neighbours: others(e.neighbours, id)}
	answers := e.ask(ctx, cluster)
	if e.authority != nil {
		source := e.authority(id)
		facts.CA, facts.CAError = source.Load(ctx)
		if facts.CAError != nil {
			facts.CA = nil
			log.WithField("err", facts.CAError).Warn("the CA could not be read")
		}
	}
	opts, usable := options, usableAuthority(facts.CA, cluster, e.now)
	if usable {
		key, err := facts.CA.Key.PEM()
		if err != nil {
			return nil, fmt.Errorf("preparing the CA of cluster %s: %w", id, err)
		}
		opts.CAKey, opts.CACert = key, facts.CA.CertificatePEM()
	}
	result := e.translator.Translate(cluster, opts)
	for _, o := range result.Objects {
		o.Unstructured = *adopt.AtStage(&o.Unstructured, stage)
	}
	if err := addTranslation(&facts, result); err != nil {
		return nil, err
	}
	named := e.askNames(ctx, cluster, result)
	if e.place.live != nil {
		if facts, err = check.Gather(ctx, e.place.live.Reader, facts); err != nil {
			log.WithField("err", err).Warn("not everything could be read; the checks that need it say so")
		}
	}
	answers(&facts)
	facts.Names = named()
	report, err := check.Run(ctx, facts, check.Options{Only: e.only, Accept: e.accept})
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("examining cluster %s: %w", id, err)
	}
	log.WithField("took", time.Since(started)).WithField("outcome", report.Outcome).Debug("cluster examined")
	out := &examination{cluster: cluster, now: now, result: result, report: report, caKey: usable}
	if usable {
		out.authority = facts.CA.Origin
	}
	return out, nil
}

// ask begins to ask the cluster itself, and returns how to get the answers. Meanwhile there is other work: an ingress far away takes its time.
func (e *examiner) ask(ctx context.Context, cluster *legacy.Cluster) func(*check.Facts) {
	members := e.askEtcd(ctx, cluster)
	connect := sync.OnceValues(func() (*kube.ReadOnly, error) {
		if e.inside == nil || cluster.Inside == nil {
			return nil, nil //nolint:nilnil // It does not answer, and that has been said; or nobody asks, as of a snapshot.
		}
		return e.inside(cluster)
	})
	workloads := askInside(ctx, connect, func(ctx context.Context, inside *kube.ReadOnly) (*check.Workloads, error) {
		return check.AskWorkloads(ctx, inside.Reader, e.now)
	})
	requests := askInside(ctx, connect, func(ctx context.Context, inside *kube.ReadOnly) (*check.Requests, error) {
		return check.AskRequests(ctx, inside.Get)
	})
	return func(facts *check.Facts) {
		facts.Etcd, facts.EtcdUnread = members()
		unread := func(what check.Fact, err error) {
			if err == nil {
				return
			}
			if facts.Unread == nil {
				facts.Unread = map[check.Fact]string{}
			}
			facts.Unread[what] = err.Error()
		}
		var err error
		if facts.Workloads, err = workloads(); e.inside == nil {
			facts.Workloads, err = check.RecordedWorkloads(cluster.Inside, e.now)
		}
		unread(check.Running, err)
		facts.Requests, err = requests()
		unread(check.Requested, err)
	}
}

// askNames begins to ask the new machines' name servers for the API's name, and returns how to get what they say. Where the workload cluster does not answer by its name nobody asks.
func (e *examiner) askNames(ctx context.Context, cluster *legacy.Cluster, result *translate.Result) func() *check.Names {
	name, servers := result.Endpoint()
	if e.resolve == nil || cluster.Inside == nil || name == "" {
		return func() *check.Names { return nil }
	}
	answered := make(chan *check.Names, 1)
	go func() { answered <- check.AskNames(ctx, e.resolve, name, servers) }()
	return func() *check.Names { return <-answered }
}

// askEtcd begins to ask a cluster's etcd, and returns how to get the answers, or why there are none.
func (e *examiner) askEtcd(ctx context.Context, cluster *legacy.Cluster) func() (*check.EtcdState, string) {
	if e.etcd == nil {
		return func() (*check.EtcdState, string) { return nil, "" }
	}
	var (
		state *check.EtcdState
		err   error
		asked sync.WaitGroup
	)
	asked.Go(func() {
		var members *etcd.Client
		if members, err = e.etcd(cluster); err != nil {
			return
		}
		state, err = check.AskEtcd(ctx, members)
		err = errors.Join(err, members.Close())
	})
	return func() (*check.EtcdState, string) {
		if asked.Wait(); err != nil {
			return nil, err.Error()
		}
		return state, ""
	}
}

// askInside begins to ask a workload cluster, and returns how to get the answer; nil when there is none to ask.
func askInside[T any](ctx context.Context, connect func() (*kube.ReadOnly, error), ask func(context.Context, *kube.ReadOnly) (*T, error)) func() (*T, error) {
	var (
		found *T
		err   error
		asked sync.WaitGroup
	)
	asked.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, insideTimeout)
		defer cancel()
		var inside *kube.ReadOnly
		if inside, err = connect(); err == nil && inside != nil {
			found, err = ask(ctx, inside)
		}
	})
	return func() (*T, error) {
		asked.Wait()
		return found, err
	}
}

// asBefore returns the cluster as it was before its migration began, how far its objects have to be unpaused by now, and what was said about the cluster to come.
// A cluster that nobody migrates is returned as it is.
func (e *examiner) asBefore(ctx context.Context, now *legacy.Cluster) (*legacy.Cluster, adopt.Stage, translate.Options, error) {
	if e.place.live == nil || e.recorded {
		return now, adopt.AllPaused, e.opts, nil
	}
	object, err := e.migrationOf(ctx, now)
	if err != nil || object == nil {
		return now, adopt.AllPaused, e.opts, err
	}
	record, err := migrate.LoadRecord(ctx, e.place.live.Reader, object.Namespace, now.ID)
	if err != nil || record == nil {
		return now, adopt.AllPaused, e.opts, err
	}
	options := e.opts
	if migrate.Started(object) {
		if options, err = record.Told.Complete(options); err != nil {
			return nil, 0, options, err
		}
		options.Namespace = object.Namespace
	}
	source := legacy.NewLive(adopt.AsBefore(e.place.live.Reader, record, migrate.RemovedBy(object, record)), e.place.live.Server, e.place.opts)
	before, err := source.Load(ctx, now.ID)
	return before, migrate.StageOf(object), options, errors.Join(err, source.Close())
}

// migrationOf is a cluster's migration, where people say or where its organization's clusters belong, else wherever it has begun; nil when there is none. Only
// the last question needs a list, which is asked for once for all clusters.
func (e *examiner) migrationOf(ctx context.Context, c *legacy.Cluster) (*migrationv1alpha1.ClusterMigration, error) {
	object, err := migrate.Read(ctx, e.place.live.Reader, first(e.opts.Namespace, check.TargetNamespace(c.Organization)), c.ID)
	if err != nil || object != nil || e.opts.Namespace != "" {
		return object, err
	}
	e.elsewhere.Do(func() {
		list := &migrationv1alpha1.ClusterMigrationList{}
		if e.migrationsErr = e.place.live.Reader.List(ctx, list); kube.Unserved(e.migrationsErr) {
			e.migrationsErr = nil
		}
		e.migrations = list.Items
	})
	if e.migrationsErr != nil {
		return nil, fmt.Errorf("listing ClusterMigrations: %w", e.migrationsErr)
	}
	for i := range e.migrations {
		if m := &e.migrations[i]; m.Spec.ClusterID == c.ID && migrate.Started(m) {
			return m, nil
		}
	}
	return nil, nil //nolint:nilnil // a cluster that nobody migrates is ordinary
}

// usableAuthority tells whether a CA is the cluster's own: its key fits, it may sign, and it signed the certificates in use. The checks
// say what is wrong otherwise; here it only keeps a wrong key out of the objects.
func usableAuthority(authority *pki.Authority, cluster *legacy.Cluster, at time.Time) bool {
	if authority == nil || authority.Matches() != nil || authority.MaySign() != nil {
		return false
	}
	known, signed := 0, 0
	for name, certificate := range cluster.Certificates {
		chain, err := pki.ParseCertificates(certificate.CertPEM)
		if err != nil {
			continue
		}
		known++
		leaf := pki.Leaf{Name: name, Certificate: chain[0], Chain: chain[1:]}
		if !errors.Is(authority.Signed(leaf, at), pki.ErrNotSigned) {
			signed++
		}
	}
	// One that another CA signed blocks the migration elsewhere; a snapshot without certificates cannot contradict.
	return known == 0 || signed > 0
}

// addTranslation tells the checks what became of the cluster's settings and nodes.
func addTranslation(facts *check.Facts, result *translate.Result) error {
	replacements, err := result.Replacements(facts.Cluster)
	if err != nil {
		return fmt.Errorf("reading the nodes to come of cluster %s: %w", facts.Cluster.ID, err)
	}
	facts.Translated, facts.Translation, facts.Replacements, facts.KeptNames = true, result.Findings, replacements, result.KeptNames
	facts.TargetKubernetes, facts.JoinsWithVote = result.TargetKubernetes, forecast.JoinsWithVote(result.TargetKubernetes)
	return nil
}

// others are the clusters beside one; nil when there are none.
func others(all []check.Neighbour, id string) []check.Neighbour {
	var out []check.Neighbour
	for _, neighbour := range all {
		if neighbour.ID != id {
			out = append(out, neighbour)
		}
	}
	return out
}
