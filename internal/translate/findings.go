package translate

import (
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

// FindingDoc documents one kind of finding for `migrate explain` and docs/findings.md.
type FindingDoc struct {
	ID       string
	Severity finding.Severity
	Title    string
	Text     string
}

// Ids of findings. Each has an entry in Findings.
const (
	idUnknown       = "TRN-FIELD-001"
	idValue         = "TRN-VALUE-001"
	idLost          = "TRN-FIELD-002"
	idDockerCIDR    = "TRN-DOCKER-001"
	idLabel         = "TRN-LABEL-001"
	idKubeletAuth   = "TRN-KUBELET-001"
	idVersion       = "TRN-VERSION-001"
	idEtcdImage     = "TRN-ETCD-001"
	idEtcdDomain    = "TRN-ETCD-002"
	idMasterAddress = "TRN-ETCD-003"
	idHostVolume    = "TRN-VOLUME-001"
	idInitiator     = "TRN-ISCSI-001"
	idIdentity      = "TRN-IDENTITY-001"
	idSecret        = "TRN-SECRET-001" //nolint:gosec // G101: the name of a finding.
	idNodeCIDR      = "TRN-NETWORK-001"
	idContradict    = "TRN-INPUT-001"
	idEncryption    = "TRN-ENCRYPTION-001"
	idDecision      = "TRN-DECISION-001"
	idMasters       = "TRN-MASTER-001"
	idNoIgnition    = "TRN-INPUT-002"
)

// Findings lists every kind of finding the translation can make, in the order of the documentation.
func Findings() []FindingDoc {
	return []FindingDoc{
		{idUnknown, finding.Decide, "Field without a rule", "The input holds a field that the translation table does not know. It may matter or not; a human has to say. Answer `drop` when nothing is lost, otherwise add a row to internal/translate/fields.go."},
		{idLost, finding.Error, "A mapped value found no home", "A field that should be carried over was not used by any rule. This is a defect of the program: please report it with the redacted snapshot."},
		{idValue, finding.Block, "A value cannot be understood", "A field holds something that is not what its type promises, for example an address that does not parse. Correct the legacy object; nothing is guessed."},
		{idContradict, finding.Block, "Two sources contradict each other", "The same fact is recorded twice with different values, for example in a KVMConfig and in the Ignition the VM was booted with. Correct the one that is wrong."},
		{idMasters, finding.Block, "There is not exactly one master", "The legacy platform runs one master with a one-member etcd. The takeover of the control plane is made for that and refuses anything else."},
		{idNoIgnition, finding.Block, "A node's Ignition cannot be read", "The settings a node was booted with are in its ConfigMap. Without them nobody knows what its replacement must look like."},
		{idIdentity, finding.Block, "The cluster's identity is incomplete", "Id, organisation or API name are missing or not usable as Kubernetes names."},
		{idVersion, finding.Block, "No supported Kubernetes version to go to", "The first new control plane must be exactly one minor above the legacy one and at least 1.22, the lowest that Cluster API's bootstrap provider supports. Upgrade the legacy cluster to 1.21 first."},
		{idDockerCIDR, finding.Decide, "The Docker bridge network has no equivalent", "containerd makes no bridge of its own, so the address range set for Docker is simply not used any more. If the range was chosen because another network collides with Docker's default, dropping it is right. Answer `carry` only if the node image still runs Docker beside containerd."},
		{idLabel, finding.Warn, "A recorded node label is missing on the live node", "KVMClusterConfig records labels for workers that the legacy platform never put on the Nodes. New nodes will carry them; workloads selecting on them may then schedule."},
		{idKubeletAuth, finding.Warn, "The kubelets' API gets closed", "Legacy kubelets answer anybody on port 10250. kubeadm's kubelets ask the API server who may see what. Whatever scrapes kubelets without credentials stops working on new nodes."},
		{idEtcdImage, finding.Warn, "There is no image of the running etcd version", "The new member runs the nearest patch of the same minor, not an older one if there is any, that kubeadm has an image for."},
		{idEtcdDomain, finding.Warn, "The etcd name ends with the legacy master", "Clients that reach etcd by its own domain name through the management cluster's ingress lose it when the migration is finalized."},
		{idMasterAddress, finding.Block, "The master's address is not known", "The new control plane joins the running etcd by the address of the legacy master's VM, which kvm-operator notes on its pod. Without it there is nothing to join."},
		{idHostVolume, finding.Warn, "A worker is bound to its host", "The replacement needs the same directory of the same management cluster node, and only one VM of a cluster fits on a node: it can start only after the old VM has stopped."},
		{idInitiator, finding.Decide, "A replacement can keep its worker's iSCSI name", "Nobody is asked: without an answer, or with `new`, a replacement has an initiator name of its own, with its Machine's name at the end. Where a storage array lists whole names and somebody would have to change the list for each worker, answer `keep`: two machines with one name would write to the same volumes, so each worker gets a MachineDeployment of one machine, goes before its replacement comes, and is rolled that way from then on. Answer by this id for all workers, or for one by the field of its boot data, `Ignition/worker-ID:file:/etc/iscsi/initiatorname.iscsi`; the nearer answer counts. It has to be answered before the migration begins, or after all of it was taken back."},
		{idSecret, finding.Block, "A secret value is missing", "A value that new machines cannot do without is not in the input, or the snapshot was written without secret values."},
		{idEncryption, finding.Block, "The encryption key is missing or contradicts the running API server", "Without the same key in the same order the new API server cannot read the customer's Secrets."},
		{idNodeCIDR, finding.Warn, "Nodes carry pod CIDRs", "Legacy clusters let Calico assign pod addresses and never allocate node CIDRs; this one does. The pod network is set on the Cluster, so that the new controller manager goes on."},
		{idDecision, finding.Error, "A decision answers nothing", "The decisions file names a field or finding that does not ask for a decision, or gives a value that is none of the choices."},
	}
}
