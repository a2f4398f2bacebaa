package proof

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pack"
)

// Item is one value that was looked at, or the reason why it could not be read. Exactly one of the two is set.
type Item[T any] struct {
	Value *T `json:"value,omitempty"`
	// Unread says why there is no value.
	Unread string `json:"unread,omitempty"`
}

func read[T any](value T) Item[T] { return Item[T]{Value: &value} }

func unread[T any](format string, args ...any) Item[T] {
	return Item[T]{Unread: fmt.Sprintf(format, args...)}
}

// Evidence is everything about one cluster that only a restart or a replacement changes, at one moment.
type Evidence struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   Moment `json:"metadata"`
	Cluster    string `json:"cluster"`
	VMs        VMs    `json:"vms"`
	Nodes      Nodes  `json:"nodes"`
	Etcd       Etcd   `json:"etcd"`
	// Course is what the migration itself had done by then.
	Course Course `json:"course,omitzero"`
}

// Moment says when evidence was collected, and by what.
type Moment struct {
	CollectedAt time.Time `json:"collectedAt"`
	Tool        string    `json:"tool"`
}

// VMs are the pods that virtual machines run in, sorted by name.
type VMs struct {
	Items []VM `json:"items,omitempty"`
	// Unread says why the pods could not be listed; Items means nothing then.
	Unread string `json:"unread,omitempty"`
}

// VM is one virtual machine, as the management cluster sees it.
type VM struct {
	// Name is role and node id, for example worker-k3m9a: what stays when a pod is replaced.
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	UID       string `json:"uid"`
	// StartTime is when the management cluster's kubelet took the pod.
	StartTime Item[time.Time] `json:"startTime"`
	// DeletionTimestamp is set for a pod that is going.
	DeletionTimestamp *time.Time `json:"deletionTimestamp,omitempty"`
	// Containers are sorted by name.
	Containers []Container `json:"containers,omitempty"`
}

// Container is one container of a VM's pod.
type Container struct {
	Name string `json:"name"`
	// Run is the newest run; unread when the management cluster's kubelet has not reported any.
	Run Item[Run] `json:"run"`
}

// Run is one run of a container, from its start to its end.
type Run struct {
	ID       string `json:"id"`
	Restarts int32  `json:"restarts"`
	// State is running, or why it is not.
	State string `json:"state"`
	// StartedAt is absent while the container waits.
	StartedAt *time.Time `json:"startedAt,omitempty"`
}

// Nodes are the machines as the cluster itself sees them, sorted by name.
type Nodes struct {
	Items  []Node `json:"items,omitempty"`
	Unread string `json:"unread,omitempty"`
}

// Node is one Node of the workload cluster with its kubelet.
type Node struct {
	Name       string `json:"name"`
	UID        string `json:"uid"`
	ProviderID string `json:"providerID,omitempty"`
	// Labels are all of them.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations are those that Cluster API and this program may write; others change all the time without meaning.
	Annotations map[string]string `json:"annotations,omitempty"`
	// BootID changes with every boot of the guest.
	BootID Item[string] `json:"bootID"`
	// KubeletStart is when the kubelet's process started.
	KubeletStart Item[time.Time] `json:"kubeletStart"`
	// Addresses are type and address, sorted.
	Addresses []string `json:"addresses,omitempty"`
}

// Etcd is the member table and what each member says.
type Etcd struct {
	// Cluster is the cluster's id.
	Cluster string `json:"cluster,omitempty"`
	// Members are sorted by id.
	Members []Member `json:"members,omitempty"`
	// Unread says why the member table could not be read; Members means nothing then.
	Unread string `json:"unread,omitempty"`
	// Term and Leader are those all members that answered agree on.
	Term   Item[string] `json:"term"`
	Leader Item[string] `json:"leader"`
}

// Member is one etcd member. What is said by the member itself needs an endpoint that leads to it.
type Member struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Learner bool   `json:"learner"`
	// Started is when the member's process started.
	Started Item[time.Time] `json:"started"`
	Version Item[string]    `json:"version"`
}

// ReadEvidence reads evidence that was saved as JSON. It is strict: what is understood in part must not be compared.
func ReadEvidence(data []byte) (*Evidence, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	e := new(Evidence)
	if err := dec.Decode(e); err != nil {
		return nil, fmt.Errorf("reading evidence: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("reading evidence: more than one document")
	}
	if e.APIVersion != migrationv1alpha1.APIVersion || e.Kind != migrationv1alpha1.KindEvidence {
		return nil, fmt.Errorf("reading evidence: this is %s %s, not %s %s",
			e.APIVersion, e.Kind, migrationv1alpha1.APIVersion, migrationv1alpha1.KindEvidence)
	}
	return e, nil
}

// maxEvidence bounds what unpacking writes into memory: several thousand nodes.
const maxEvidence = 64 << 20

// Pack makes the evidence small enough for an object of the API server: as JSON, a MiB is the evidence of two hundred nodes.
func (e *Evidence) Pack() ([]byte, error) {
	packed, err := pack.JSON(e)
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	return packed, nil
}

// Unpack undoes Pack, without reading the document.
func Unpack(packed []byte) ([]byte, error) {
	text, err := pack.Open(packed, maxEvidence)
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	return text, nil
}
