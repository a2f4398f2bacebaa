package cli

import (
	"go.yaml.in/yaml/v3"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

// Decisions are what humans decided before a plan is made:
//
//	apiVersion: migration.giantswarm.io/v1alpha1
//	kind: Decisions
//	decisions:                                # by field or by id of the finding
//	  spec.cluster.docker.daemon.cidr: drop
//	  TRN-LABEL-001: {value: keep, reason: "agreed with the customer", by: ops@example.com}
//	accept:                                   # checks that may warn instead of block
//	  - {check: CHK-CP-001, reason: "CHG-4711", until: 2026-12-31}
type Decisions struct {
	// Answers are by field key or finding id.
	Answers map[string]finding.Answer
	Accept  []check.Accepted
}

// ParseDecisions reads a decisions file. It is strict: whatever is not understood is an error with its line, because a decision
// that is silently left out is one that was never taken.
func ParseDecisions(name string, data []byte) (Decisions, error) {
	d := &yamlDocument{name: name}
	decisions := Decisions{Answers: map[string]finding.Answer{}}
	fields := d.parse(data, migrationv1alpha1.KindDecisions, "metadata", "decisions", "accept")
	if node := fields["metadata"]; node != nil {
		for key, value := range d.mapping(node, "metadata", "name", "description") {
			d.text(value, key)
		}
	}
	if node := fields["decisions"]; node != nil && node.Tag != "!!null" {
		for key, value := range d.mapping(node, "decisions") {
			if key == "" {
				d.wrong(value.Line, "a decision needs a field or an id")
				continue
			}
			if answer, ok := d.answer(key, value); ok {
				decisions.Answers[key] = answer
			}
		}
	}
	if node := fields["accept"]; node != nil && node.Tag != "!!null" {
		if node.Kind != yaml.SequenceNode {
			d.wrong(node.Line, "accept must be a list")
		} else {
			for _, entry := range node.Content {
				if waiver, ok := d.waiver(entry); ok {
					decisions.Accept = append(decisions.Accept, waiver)
				}
			}
		}
	}
	if err := d.err(); err != nil {
		return Decisions{}, err
	}
	return decisions, nil
}

// answer reads one decision: the value alone, or a mapping with reason and name.
func (d *yamlDocument) answer(key string, node *yaml.Node) (finding.Answer, bool) {
	before := len(d.problems)
	if node.Kind == yaml.ScalarNode {
		answer := finding.Answer{Value: d.text(node, "the decision about "+key)}
		if answer.Value == "" && len(d.problems) == before {
			d.wrong(node.Line, "the decision about %s is empty", key)
		}
		return answer, len(d.problems) == before
	}
	fields := d.mapping(node, "the decision about "+key, "value", "reason", "by")
	if fields == nil {
		return finding.Answer{}, false
	}
	answer := finding.Answer{
		Value:  d.required(node, fields, "value", "the decision about "+key),
		Reason: d.optional(fields, "reason"),
		By:     d.optional(fields, "by"),
	}
	return answer, len(d.problems) == before
}

// waiver reads one accepted check.
func (d *yamlDocument) waiver(node *yaml.Node) (check.Accepted, bool) {
	before := len(d.problems)
	fields := d.mapping(node, "an entry of accept", "check", "reason", "until")
	if fields == nil {
		return check.Accepted{}, false
	}
	waiver := check.Accepted{
		ID:     d.required(node, fields, "check", "an entry of accept"),
		Reason: d.required(node, fields, "reason", "an entry of accept"),
	}
	if until := fields["until"]; until != nil {
		at, err := parseUntil(d.text(until, "until"))
		if err != nil {
			d.wrong(until.Line, "%s", err)
		}
		waiver.Until = &at
	}
	return waiver, len(d.problems) == before
}
