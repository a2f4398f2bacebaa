package plan

import (
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

const (
	idRefused   = "PLN-APPLY-001"
	idConflict  = "PLN-APPLY-002"
	idUnserved  = "PLN-APPLY-003"
	idForbidden = "PLN-APPLY-004"
	idRedacted  = "PLN-INPUT-001"
	idNoKey     = "PLN-INPUT-002"
	idExposed   = "PLN-CA-001"
)

// Findings lists every kind of finding that planning adds to those of reading and translating.
func Findings() []translate.FindingDoc {
	return []translate.FindingDoc{
		{ID: idRefused, Severity: finding.Block, Title: "The API server refuses an object", Text: "A server-side dry run of the planned object failed: validation or an admission webhook said no. The message names the field; its origin in the plan names the legacy field to correct."},
		{ID: idConflict, Severity: finding.Block, Title: "Somebody else manages the object", Text: "Server-side apply found another field manager on fields that the plan sets. Nothing is taken by force: find out who writes there, a GitOps controller perhaps, and stop it or remove its object."},
		{ID: idUnserved, Severity: finding.Block, Title: "A kind is not served", Text: "The management cluster lacks a CRD that the plan needs. Install Cluster API with its kubeadm providers, and the KVM provider."},
		{ID: idForbidden, Severity: finding.Error, Title: "A dry run is not permitted", Text: "The API server asks for the same permission for a dry run as for the write itself. The plan is not complete without the server's answer."},
		{ID: idRedacted, Severity: finding.Block, Title: "The snapshot has no secret values", Text: "The plan was made from a snapshot in which secret values are digests. It shows what would happen, but nothing can be applied from it. Plan against the live cluster, or write the snapshot with --include-secrets."},
		{ID: idExposed, Severity: finding.Info, Title: "The CA's private key is exposed", Text: "Cluster API keeps the CA's private key in Secrets of the management cluster, where the legacy platform kept it in Vault only. Whoever may read Secrets in that namespace can issue any certificate of the workload cluster. Decide who may before the Secrets are made."},
		{ID: idNoKey, Severity: finding.Block, Title: "The CA's private key is not given", Text: "Cluster API needs the private key of the cluster's CA for every control plane machine. It lives in Vault only. Give it with --ca-cert and --ca-key, --ca-secret or --ca-vault."},
	}
}
