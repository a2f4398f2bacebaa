package plan

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// Input is what a plan is made from.
type Input struct {
	Cluster *legacy.Cluster
	Result  *translate.Result
	// Report are the preflight checks; nil when none were run.
	Report *check.Report
	// Comparer compares with what is there; nil compares with nothing.
	Comparer Comparer
	// Source names where the picture came from.
	Source string
	Now    time.Time
	// ValidFor is how long the plan may be applied; default a day.
	ValidFor time.Duration
	// Tool is the program's version.
	Tool string
	// CAKey tells that the CA's private key was given and verified.
	CAKey bool
	// ControlPlanes is how many control plane machines somebody has asked for; less than two is one.
	ControlPlanes int
	// Against is an earlier plan to compare with, or nil.
	Against *Plan
}

// Build makes the plan:
//
//  1. account for every legacy field,
//  2. compare the wanted objects with what is there,
//  3. list what happens to legacy objects and nodes besides,
//  4. put everything into phases,
//  5. sum up, and say what is in the way.
//
// Apart from metadata, two runs over the same input yield the same plan.
func Build(ctx context.Context, in Input) (*Plan, error) {
	if in.Cluster == nil || in.Result == nil {
		return nil, errors.New("building a plan: picture and translation are required")
	}
	if in.ValidFor == 0 {
		in.ValidFor = 24 * time.Hour
	}
	if in.Comparer == nil {
		in.Comparer = Offline(nil)
	}
	digest := in.Cluster.Digester()
	b := &builder{in: in, digest: digest, redaction: in.Cluster.Redaction()}
	p := &Plan{APIVersion: migrationv1alpha1.APIVersion, Kind: migrationv1alpha1.KindPlan}
	p.Cluster = b.describe()
	values := b.values()
	p.Fields = b.fields(values)
	p.Basis = b.basis(values)

	comparison, err := in.Comparer.Compare(ctx, in.Result.Objects)
	if err != nil {
		return nil, fmt.Errorf("planning cluster %s: %w", in.Cluster.ID, err)
	}
	p.Basis.Compared = comparison.How
	p.Changes = append(p.Changes, b.fence()...)
	p.Changes = append(p.Changes, b.objects(comparison)...)
	p.Changes = append(p.Changes, b.release()...)
	p.Changes = append(p.Changes, b.replacements()...)
	p.Changes = append(p.Changes, b.removals()...)
	p.Phases = b.phases(p.Changes)

	p.Findings = b.findings(comparison)
	if in.Report != nil {
		p.Checks, p.Accepted = b.checks(in.Report.Results), in.Report.Accepted
	}
	p.Basis.Digest = b.total(p)
	p.Metadata = Metadata{ID: planID(in.Now, p.Basis.Digest), CreatedAt: in.Now.UTC().Truncate(time.Second), ValidUntil: in.Now.UTC().Truncate(time.Second).Add(in.ValidFor), Tool: in.Tool}
	p.Summary = summarize(p)
	p.Status = status(p)
	if in.Against != nil {
		p.Drift = Compare(in.Against, p)
	}
	return p, nil
}

type builder struct {
	in     Input
	digest *legacy.Digester
	// redaction takes out of values what nobody has marked as secret.
	redaction *legacy.Redaction
}

func (b *builder) describe() Cluster {
	c, r := b.in.Cluster, b.in.Result
	out := Cluster{
		ID: c.ID, Organization: c.Organization, Namespace: r.Namespace,
		Kubernetes: r.Kubernetes, TargetKubernetes: r.TargetKubernetes,
		Masters: len(c.Masters()), Workers: len(c.Workers()),
	}
	if c.ClusterConfig != nil {
		out.Name = b.redaction.Known(c.ClusterConfig.Object.Spec.Guest.Name)
	}
	if c.Config != nil {
		out.Release = c.Config.Object.Labels["release.giantswarm.io/version"]
		out.APIDomain = c.Config.Object.Spec.Cluster.Kubernetes.API.Domain
	}
	return out
}

// maxValue is how much of a value the document shows; files are longer, and are named by length and digest.
const maxValue = 200

// hidden is a value without what is secret in it: a digest of all of it, or of the parts that their form or their names give away.
func (b *builder) hidden(name string, value any, secret bool) any {
	text, isText := value.(string)
	switch {
	case secret && isText && text == "":
		return ""
	case isText && (secret || isLong(text) && legacy.LooksSecret([]byte(text))):
		return b.digest.Sum([]byte(text))
	case isText:
		return b.redaction.Text(name, text)
	case secret || legacy.IsSecret(name, value):
		return b.digest.Sum(fmt.Append(nil, value))
	}
	return value
}

// shown is how a value appears once nothing in it is secret: of a long text its beginning, its length and the beginning of its SHA-256.
func shown(value any) any {
	text, isText := value.(string)
	if !isText || !isLong(text) {
		return value
	}
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf("%s (%d bytes, sha256 %s)", firstLine(text), len(text), hex.EncodeToString(sum[:6]))
}

func isLong(text string) bool { return len(text) > maxValue || strings.Contains(text, "\n") }

// firstLine is the first line that says something, cut to a readable length at a rune's boundary.
func firstLine(text string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			const limit = 60
			if len(line) > limit {
				cut := limit
				for cut > 0 && !utf8.RuneStart(line[cut]) {
					cut--
				}
				line = line[:cut]
			}
			return line + " …"
		}
	}
	return "…"
}

// values are those of the legacy fields, without secrets. The translation has marked what the fields' names give away.
func (b *builder) values() []any {
	out := make([]any, 0, len(b.in.Result.Fields))
	for i := range b.in.Result.Fields {
		f := &b.in.Result.Fields[i]
		out = append(out, b.hidden("", f.Value, f.Secret))
	}
	return out
}

func (b *builder) fields(values []any) []Field {
	out := make([]Field, 0, len(b.in.Result.Fields))
	for i := range b.in.Result.Fields {
		f := &b.in.Result.Fields[i]
		out = append(out, Field{
			Source: f.Source, Path: f.Path, Value: translate.Text(shown(values[i])),
			Disposition: Disposition(f.Disposition), Targets: f.Targets, Reason: f.Reason, Rule: f.Rule,
		})
	}
	return out
}

// basis lists the objects the plan rests on, each with a digest over the fields that were used. What a
// plain digest is made of could be guessed, so secrets are no part of it; their own digests are.
func (b *builder) basis(values []any) Basis {
	out := Basis{Source: b.in.Source, Redacted: b.in.Cluster.Redacted}
	refs := map[string]legacy.Ref{}
	for _, ref := range b.in.Cluster.Refs() {
		refs[ref.String()] = ref
	}
	bySource := map[string][]byte{}
	var order []string
	for i, value := range values {
		f := &b.in.Result.Fields[i]
		if f.Disposition == translate.Dropped {
			continue
		}
		if _, seen := bySource[f.Source]; !seen {
			order = append(order, f.Source)
		}
		bySource[f.Source] = append(bySource[f.Source], (f.Path + "\x00" + translate.Text(value) + "\x00")...)
	}
	for _, source := range order {
		sum := sha256.Sum256(bySource[source])
		ref := refs[source]
		out.Observed = append(out.Observed, Observed{Ref: source, UID: string(ref.UID), ResourceVersion: ref.ResourceVersion, Digest: "sha256:" + hex.EncodeToString(sum[:8])})
	}
	slices.SortFunc(out.Observed, func(x, y Observed) int { return strings.Compare(x.Ref, y.Ref) })
	return out
}

// total is the digest over everything the plan used: observed values, wanted changes and decisions.
func (b *builder) total(p *Plan) string {
	hash := sha256.New()
	encoder := json.NewEncoder(hash)
	observed := make([]string, 0, len(p.Basis.Observed))
	for _, o := range p.Basis.Observed {
		observed = append(observed, o.Ref+" "+o.Digest)
	}
	// Only documents of this package are encoded; they always encode.
	if err := encoder.Encode([]any{observed, p.Changes, p.Findings, p.Cluster}); err != nil {
		panic(fmt.Sprintf("encoding the plan's basis: %v", err))
	}
	return "sha256:" + hex.EncodeToString(hash.Sum(nil))[:32]
}

// planID sorts by time and differs between plans of the same second.
func planID(now time.Time, digest string) string {
	seconds := now.UTC().Unix()
	stamp := [5]byte{byte(seconds >> 32), byte(seconds >> 24), byte(seconds >> 16), byte(seconds >> 8), byte(seconds)} //nolint:gosec // G115: the five low bytes are what is wanted.
	sum := sha256.Sum256([]byte(digest))
	const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	return base32.NewEncoding(alphabet).WithPadding(base32.NoPadding).EncodeToString(append(stamp[:], sum[:5]...))
}

// objects turns the wanted objects and their states into changes.
func (b *builder) objects(comparison Comparison) []Object {
	out := make([]Object, 0, len(b.in.Result.Objects))
	for _, o := range b.in.Result.Objects {
		change := Object{Action: Create, Object: o.Ref(), Phase: o.Phase, Secret: o.Secret, Note: o.Note}
		origins := map[string]*translate.Value{}
		for i := range o.Values {
			origins[o.Values[i].Path] = &o.Values[i]
		}
		state := comparison.States[o.Ref()]
		switch {
		case o.Phase == PhaseFinalize:
			change.Action = Change
			change.Fields = b.created(o)
		case !state.Exists:
			if o.Adopts != "" {
				change.Action = Adopt
			}
			change.Fields = b.created(o)
		case len(state.Diffs) == 0:
			change.Action = Keep
		default:
			change.Action = Change
			for _, diff := range state.Diffs {
				change.Fields = append(change.Fields, b.field(o, origins[diff.Path], diff))
			}
		}
		out = append(out, change)
	}
	return out
}

func (b *builder) created(o *translate.Object) []FieldChange {
	out := make([]FieldChange, 0, len(o.Values))
	for i := range o.Values {
		out = append(out, b.field(o, &o.Values[i], Diff{Path: o.Values[i].Path, After: o.Values[i].After}))
	}
	return out
}

func (b *builder) field(o *translate.Object, value *translate.Value, diff Diff) FieldChange {
	f := FieldChange{Path: diff.Path}
	if o.Secret && strings.HasPrefix(diff.Path, "data") {
		f.Before, f.After = b.datum(diff.Before), b.datum(diff.After)
	} else {
		name := translate.FieldName(diff.Path, o.Text)
		f.Before, f.After = shown(b.hidden(name, diff.Before, false)), shown(b.hidden(name, diff.After, false))
	}
	if value != nil {
		f.From, f.Rule = value.From, value.Rule
		if value.Generated {
			f.After = "made when the object is applied"
		}
	}
	return f
}

// datum shows a value of a Secret. They are base64; the digest is over what they stand for, so that it equals the digest of the
// legacy value.
func (b *builder) datum(value any) any {
	if text, isText := value.(string); isText {
		if raw, err := base64.StdEncoding.DecodeString(text); err == nil {
			if isPublic(raw) {
				sum := sha256.Sum256(raw)
				return "sha256:" + hex.EncodeToString(sum[:16])
			}
			return b.digest.Sum(raw)
		}
	}
	if value == nil {
		return nil
	}
	return shown(b.hidden("", value, true))
}

// isPublic tells whether a Secret's value is none: certificates and public keys. Their plain digests are the same in a plan from a
// snapshot without secret values, where keyed digests cannot be made.
func isPublic(raw []byte) bool {
	text := string(raw)
	return (strings.HasPrefix(text, "-----BEGIN CERTIFICATE-----") || strings.HasPrefix(text, "-----BEGIN PUBLIC KEY-----")) && !legacy.LooksSecret(raw)
}

// findings gathers what reading, translating and comparing had to say.
func (b *builder) findings(comparison Comparison) []finding.Finding {
	out := slices.Concat(b.in.Cluster.Problems, b.in.Result.Findings, comparison.Findings)
	cluster := "KVMConfig/default/" + b.in.Cluster.ID
	if b.in.Cluster.Redacted {
		out = append(out, finding.Finding{ID: idRedacted, Severity: finding.Block, Object: b.in.Source, Message: "the snapshot holds digests instead of secret values: the plan can be read but not applied", Hint: "plan against the live cluster, or write the snapshot with --include-secrets"})
	}
	if b.in.CAKey {
		out = append(out, finding.Finding{
			ID: idExposed, Severity: finding.Info, Object: "Secret/" + b.in.Result.Namespace + "/" + b.in.Cluster.ID + "-ca", Path: "data[tls.key]",
			Message: "the CA's private key leaves its vault: whoever may read Secrets in namespace " + b.in.Result.Namespace + " can then issue any certificate of the cluster", Hint: "see who may, before phase translate: kubectl auth can-i get secrets --namespace " + b.in.Result.Namespace + " --as NAME",
		})
	}
	// With checks, CHK-PKI-001 says it already.
	if !b.in.CAKey && b.in.Report == nil {
		out = append(out, finding.Finding{ID: idNoKey, Severity: finding.Block, Object: cluster, Message: "the private key of the cluster's CA is not given: Secrets " + b.in.Cluster.ID + "-ca and -etcd would lack it", Hint: "add --ca-cert FILE --ca-key FILE, --ca-secret NAMESPACE/NAME or --ca-vault PATH"})
	}
	for i := range out {
		out[i].Message = b.redaction.Known(out[i].Message)
	}
	finding.Sort(out)
	return slices.CompactFunc(out, func(x, y finding.Finding) bool {
		return x.ID == y.ID && x.Object == y.Object && x.Path == y.Path && x.Message == y.Message
	})
}

// checks are the results of the checks, whose evidence quotes the objects, without what the cluster's Secrets hold.
func (b *builder) checks(results []check.Result) []check.Result {
	out := slices.Clone(results)
	for i := range out {
		out[i].Detail = b.redaction.Known(out[i].Detail)
		out[i].Items = slices.Clone(out[i].Items)
		for n := range out[i].Items {
			out[i].Items[n] = b.redaction.Known(out[i].Items[n])
		}
	}
	return out
}

func summarize(p *Plan) Summary {
	var s Summary
	for _, c := range p.Changes {
		switch c.Action {
		case Create:
			s.Create++
		case Adopt:
			s.Adopt++
		case Change:
			s.Change++
		case Replace:
			s.Replace++
		case Remove:
			s.Remove++
		case Keep:
		}
	}
	for _, f := range p.Findings {
		if f.Open() {
			s.Decide++
		}
	}
	s.Translation.Read = len(p.Fields)
	for _, f := range p.Fields {
		switch f.Disposition {
		case Mapped:
			s.Translation.Mapped++
		case Derived:
			s.Translation.Derived++
		case Dropped:
			s.Translation.Dropped++
		case NeedsDecision:
			s.Translation.Decide++
		}
	}
	return s
}

func status(p *Plan) Status {
	out := Status{Complete: true, BlockedBy: []string{}}
	for _, f := range p.Findings {
		if f.Severity == finding.Error {
			out.Complete = false
		}
		if f.Severity == finding.Error || f.Severity == finding.Block || f.Open() {
			out.BlockedBy = append(out.BlockedBy, f.ID)
		}
	}
	for _, r := range p.Checks {
		switch r.Outcome {
		case check.Error:
			out.Complete = false
			out.BlockedBy = append(out.BlockedBy, r.ID)
		case check.Block, check.Decide:
			out.BlockedBy = append(out.BlockedBy, r.ID)
		case check.Pass, check.Warn, check.Skip:
		}
	}
	slices.Sort(out.BlockedBy)
	out.BlockedBy = slices.Compact(out.BlockedBy)
	s := p.Summary
	out.HasChanges = s.Create+s.Adopt+s.Change+s.Replace+s.Remove > 0
	out.Applyable = out.Complete && len(out.BlockedBy) == 0
	return out
}
