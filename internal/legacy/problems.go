package legacy

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

// The problems this package reports. The texts to each of them are in Problems.
const (
	ProblemFileUnreadable   = "LEG-READ-001"
	ProblemFileMalformed    = "LEG-READ-002"
	ProblemTooLarge         = "LEG-READ-003"
	ProblemArchiveDamaged   = "LEG-READ-004"
	ProblemArchiveEntry     = "LEG-READ-005"
	ProblemHostileDocument  = "LEG-READ-006"
	ProblemLinkSkipped      = "LEG-READ-007"
	ProblemObjectIncomplete = "LEG-READ-008"
	ProblemDuplicateKey     = "LEG-READ-009"
	ProblemPerhapsUnread    = "LEG-READ-010"

	ProblemDuplicateContradicts = "LEG-DUP-001"
	ProblemDuplicateOlder       = "LEG-DUP-002"

	ProblemInsideWithoutHome = "LEG-HOME-001"
	ProblemObjectsOfUnknown  = "LEG-HOME-002"

	ProblemNoConfig           = "LEG-CONF-001"
	ProblemSeveralConfigs     = "LEG-CONF-002"
	ProblemNameDiffers        = "LEG-CONF-003"
	ProblemWrongType          = "LEG-CONF-004"
	ProblemNoMaster           = "LEG-CONF-005"
	ProblemSeveralMasters     = "LEG-CONF-006"
	ProblemUnpairedSizing     = "LEG-CONF-007"
	ProblemOrganization       = "LEG-CONF-008"
	ProblemNoOrganization     = "LEG-CONF-009"
	ProblemNoClusterConfig    = "LEG-CONF-010"
	ProblemSeveralOfOne       = "LEG-CONF-011"
	ProblemNodeID             = "LEG-CONF-012"
	ProblemBadID              = "LEG-CONF-013"
	ProblemNoFlannelConfig    = "LEG-CONF-014"
	ProblemNoNamespace        = "LEG-CONF-015"
	ProblemNoRelease          = "LEG-REL-001"
	ProblemNoReleaseLabel     = "LEG-REL-002"
	ProblemCertificateTwice   = "LEG-CERT-001"
	ProblemCertificateData    = "LEG-CERT-002"
	ProblemCertificateLabels  = "LEG-CERT-003"
	ProblemNoCertificates     = "LEG-CERT-004"
	ProblemNoEncryption       = "LEG-ENC-001"
	ProblemSeveralEncryption  = "LEG-ENC-002"
	ProblemNoKubeconfig       = "LEG-KCFG-001"
	ProblemNodeDeployment     = "LEG-NODE-001"
	ProblemNodePod            = "LEG-NODE-002"
	ProblemNodeConfigMap      = "LEG-NODE-003"
	ProblemNodeReplicaSet     = "LEG-NODE-004"
	ProblemNodeSeveralPods    = "LEG-NODE-005"
	ProblemNodeIndex          = "LEG-NODE-006"
	ProblemNodeUnknown        = "LEG-NODE-007"
	ProblemNodeInside         = "LEG-NODE-008"
	ProblemNodeInsideUnknown  = "LEG-NODE-009"
	ProblemIgnitionMalformed  = "LEG-IGN-001"
	ProblemIgnitionTooLarge   = "LEG-IGN-002"
	ProblemIgnitionType       = "LEG-IGN-003"
	ProblemIgnitionFile       = "LEG-IGN-004"
	ProblemIgnitionRemote     = "LEG-IGN-005"
	ProblemIgnitionVersion    = "LEG-IGN-006"
	ProblemNoStorageConfig    = "LEG-STO-001"
	ProblemStorageConfig      = "LEG-STO-002"
	ProblemListFailed         = "LEG-LIVE-001"
	ProblemLegacyKindUnserved = "LEG-LIVE-002"
	ProblemKindUnserved       = "LEG-LIVE-003"
	ProblemInsideUnreachable  = "LEG-LIVE-004"
	ProblemRedacted           = "LEG-SNAP-001"
)

// problemsOfReading begins the ids of problems with files, before anybody knows what is in them.
const problemsOfReading = "LEG-READ-"

// ProblemDoc explains one kind of problem to the reader of a report.
type ProblemDoc struct {
	ID       string
	Severity finding.Severity
	// Title states what is wrong in a few words.
	Title string
	// Help says what to do about it.
	Help string
}

// Problems lists every problem this package can report, in the order of the documentation.
func Problems() []ProblemDoc {
	return []ProblemDoc{
		{ProblemFileUnreadable, finding.Error, "A file of the snapshot cannot be read", "Give the user who runs the program read access, or remove the file from the snapshot."},
		{ProblemFileMalformed, finding.Error, "A YAML or JSON file does not parse", "Correct the file at the named line or export it again; until then the objects in it are unknown."},
		{ProblemTooLarge, finding.Error, "An object or a file is larger than the limit", "Split the file or export it again without the oversized object; no Kubernetes API server stores objects of that size."},
		{ProblemArchiveDamaged, finding.Error, "The archive is damaged or incomplete", "Copy the archive again and compare checksums; only what lies before the damage was read."},
		{ProblemArchiveEntry, finding.Warn, "An archive entry was skipped because of its name or type", "Pack the archive again with relative paths, and with files instead of links and devices."},
		{ProblemHostileDocument, finding.Error, "A document is nested too deeply or expands to an absurd size", "Export the object again as plain YAML or JSON without aliases."},
		{ProblemLinkSkipped, finding.Warn, "A symbolic link was not followed", "Put the files themselves into the snapshot; links to directories and links that leave the snapshot are never followed."},
		{ProblemObjectIncomplete, finding.Error, "An object has no usable name, kind or version", "Export the object again; apiVersion, kind and metadata.name must be text."},
		{ProblemDuplicateKey, finding.Block, "A YAML mapping holds the same key twice", "Remove the line that does not belong there; the last one was used, as kubectl does."},
		{ProblemPerhapsUnread, finding.Error, "Something that could not be read may belong to the cluster", "Correct what is named, export it again, or take it out of the snapshot if it is none of it; migrate inventory lists all that could not be read."},

		{ProblemDuplicateContradicts, finding.Block, "Two files hold the same object with different contents", "Keep the file that tells the truth and remove the other; the first by path was used."},
		{ProblemDuplicateOlder, finding.Warn, "Two files hold different states of one object", "Export the object once more so that the snapshot shows one point in time; the first by path was used."},

		{ProblemInsideWithoutHome, finding.Warn, "It is unknown which cluster objects in a folder workload-cluster belong to", "Put the folder workload-cluster beside the KVMConfig of its cluster, or name its parent folder after the cluster id."},
		{ProblemObjectsOfUnknown, finding.Info, "Objects name a cluster that has neither KVMConfig nor KVMClusterConfig", "Usually leftovers of a deleted cluster. If the cluster lives, its KVMConfig is missing from the input."},

		{ProblemNoConfig, finding.Block, "The cluster has no KVMConfig", "Without a KVMConfig nothing says how the cluster is built; restore it or take the cluster out of the fleet."},
		{ProblemSeveralConfigs, finding.Block, "Several KVMConfigs claim the same cluster id", "Find out which one the operator works on and remove the other claim; the first by name was used."},
		{ProblemNameDiffers, finding.Block, "KVMConfig name and spec.cluster.id differ", "Operators look clusters up by both; correct the one that is wrong before migrating."},
		{ProblemWrongType, finding.Block, "A field has a value of the wrong type", "Correct the field at its source; it counts as unset in everything that follows."},
		{ProblemNoMaster, finding.Block, "The cluster has no master", "A cluster without a control plane node cannot be migrated; check spec.cluster.masters."},
		{ProblemSeveralMasters, finding.Block, "The cluster has several masters", "The legacy platform only ever ran one; such a cluster must be looked at by a human first."},
		{ProblemUnpairedSizing, finding.Block, "Node list and sizing list differ in length", "spec.cluster and spec.kvm pair their nodes by position; make both lists the same length."},
		{ProblemOrganization, finding.Block, "Records disagree about the organization that owns the cluster", "Correct the label or field that is wrong; it decides the namespace of the new objects."},
		{ProblemNoOrganization, finding.Block, "No record says which organization owns the cluster", "Set the label giantswarm.io/organization on the KVMConfig."},
		{ProblemNoClusterConfig, finding.Warn, "The cluster has no KVMClusterConfig", "Customer-visible settings such as worker labels are then unknown; restore it if it was lost."},
		{ProblemSeveralOfOne, finding.Block, "Several objects claim to be the cluster's only one of their kind", "Find out which one is in use and remove the other; the first by name was used."},
		{ProblemNodeID, finding.Block, "A node id is empty or occurs twice", "Node ids pair Deployments, pods and ConfigMaps; each must be there exactly once."},
		{ProblemBadID, finding.Block, "The cluster id is no valid Kubernetes name", "The id becomes the name of namespaces and objects; correct spec.cluster.id."},
		{ProblemNoFlannelConfig, finding.Warn, "The cluster has no FlannelConfig", "Without it the network of the VMs cannot be compared with what the operator intended."},
		{ProblemNoNamespace, finding.Block, "The cluster's namespace is missing", "The VM pods live in the namespace named like the cluster; export it or check whether the cluster was deleted."},
		{ProblemNoRelease, finding.Warn, "The cluster's Release is missing", "Export the Release named by the KVMConfig's label; component versions are read from it."},
		{ProblemNoReleaseLabel, finding.Warn, "The KVMConfig names no Release", "Set the label release.giantswarm.io/version."},
		{ProblemCertificateTwice, finding.Block, "Several Secrets claim to be the same certificate", "Remove the stale Secret or its labels; the first by name was used."},
		{ProblemCertificateData, finding.Block, "A certificate Secret lacks ca, crt or key", "Let cert-operator write the Secret again, or restore it."},
		{ProblemCertificateLabels, finding.Block, "Old and new labels of one Secret disagree", "Correct the label that is wrong; the new style was used."},
		{ProblemNoCertificates, finding.Block, "The cluster has no certificate Secrets", "They carry giantswarm.io/cluster and giantswarm.io/certificate, or clusterID and clusterComponent; export them from namespace default."},
		{ProblemNoEncryption, finding.Block, "The Secret with the encryption key is missing", "Without it every Secret in etcd is lost; restore it before anything else."},
		{ProblemSeveralEncryption, finding.Block, "Several Secrets claim to hold the encryption key", "Compare them with the API server's configuration and remove the wrong one; the first by name was used."},
		{ProblemNoKubeconfig, finding.Info, "The cluster has no kubeconfig Secret", "Give a kubeconfig for the workload cluster when one is needed."},
		{ProblemNodeDeployment, finding.Block, "A node has no Deployment", "Check whether the operator has finished creating the node, or whether it is being removed."},
		{ProblemNodePod, finding.Block, "A node has no VM pod", "Only running VMs can be adopted; bring the pod back or remove the node from the KVMConfig."},
		{ProblemNodeConfigMap, finding.Block, "A node has no ConfigMap with its boot data", "The ConfigMap holds settings that must survive; let the operator write it again."},
		{ProblemNodeReplicaSet, finding.Warn, "A node's ReplicaSet is missing", "Going back after adoption needs it; export it or check the pod's owner."},
		{ProblemNodeSeveralPods, finding.Warn, "A node has several pods", "Wait until the roll-out or the removal in progress is over; the running pod was used."},
		{ProblemNodeIndex, finding.Block, "The operator recorded no index for a node", "The index is part of the iSCSI initiator name; wait until status.kvm.nodeIndexes holds the node."},
		{ProblemNodeUnknown, finding.Warn, "The namespace runs a VM the KVMConfig does not name", "A node being removed, or a leftover: find out before migrating."},
		{ProblemNodeInside, finding.Warn, "A VM has no Node in the workload cluster", "The VM has not joined, or its Node was deleted; look at its kubelet."},
		{ProblemNodeInsideUnknown, finding.Warn, "The workload cluster has a Node without a VM pod", "A leftover of a removed VM; the legacy deleter normally takes it away."},
		{ProblemIgnitionMalformed, finding.Block, "The boot data of a node cannot be decoded", "user_data must be base64 of gzip of an Ignition document; let the operator write the ConfigMap again."},
		{ProblemIgnitionTooLarge, finding.Block, "The boot data of a node is larger than the limit", "No legacy node has boot data of that size; look at the ConfigMap."},
		{ProblemIgnitionType, finding.Block, "A field of the boot data has the wrong type", "Compare with the ConfigMap of another node; the field counts as unset."},
		{ProblemIgnitionFile, finding.Block, "A file in the boot data cannot be decoded", "Its contents must be a data URL; they count as unknown."},
		{ProblemIgnitionRemote, finding.Decide, "A file in the boot data is fetched from elsewhere at boot", "The program does not fetch it; say by hand what becomes of it."},
		{ProblemIgnitionVersion, finding.Warn, "The boot data has an unexpected Ignition version", "Legacy nodes use 2.x; everything else is read as far as it looks the same."},
		{ProblemNoStorageConfig, finding.Info, "cluster-service's StorageConfig was not found", "Its location is installation configuration; it is never the only source of a value."},
		{ProblemStorageConfig, finding.Warn, "cluster-service's StorageConfig cannot be read", "Its entries count as unknown; they are never the only source of a value."},
		{ProblemListFailed, finding.Error, "Objects could not be listed", "Give the user read access to the named kind, or repeat when the API server answers."},
		{ProblemLegacyKindUnserved, finding.Error, "The management cluster does not serve a legacy kind", "Is this the right management cluster? The legacy custom resource definitions must be installed."},
		{ProblemKindUnserved, finding.Info, "The management cluster does not serve a kind", "Nothing to do; objects of that kind cannot exist."},
		{ProblemInsideUnreachable, finding.Error, "The workload cluster could not be read", "Check its API from here; until then its Nodes are unknown."},
		{ProblemRedacted, finding.Info, "The snapshot holds digests instead of secrets", "Enough for planning and checking; what needs the secrets themselves needs the live cluster."},
	}
}

// problemDoc finds the explanation of an id; the list is short and problems are rare.
func problemDoc(id string) ProblemDoc {
	for _, doc := range Problems() {
		if doc.ID == id {
			return doc
		}
	}
	return ProblemDoc{ID: id, Severity: finding.Error}
}

// problem makes a finding. Every text that may come from input is made harmless here, once, so that no caller can forget it.
func problem(id, object, path, format string, args ...any) finding.Finding {
	doc := problemDoc(id)
	return finding.Finding{
		ID: id, Severity: doc.Severity, Hint: doc.Help,
		Object: printable(object), Path: printable(path), Message: printable(fmt.Sprintf(format, args...)),
	}
}

// maxTextLength keeps a hostile name from filling a report.
const maxTextLength = 512

// printable returns text that can neither move a terminal's cursor nor fill a page: control and other invisible characters are
// written as escapes, and what is too long is cut.
func printable(s string) string {
	clean := utf8.ValidString(s)
	for _, r := range s {
		if !unicode.IsPrint(r) {
			clean = false
			break
		}
	}
	if !clean {
		var b strings.Builder
		for i, r := range s {
			if i > maxTextLength {
				break
			}
			if unicode.IsPrint(r) && r != utf8.RuneError {
				b.WriteRune(r)
				continue
			}
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = b.String()
	}
	if len(s) > maxTextLength {
		cut := maxTextLength - len("…") // so that what was cut once is cut no further
		for !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return s
}
