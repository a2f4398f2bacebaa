//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

// rolledMemory is what the control plane has after the roll, in MiB.
const rolledMemory = 2816

// controlPlaneRolls changes the control plane's template and watches etcd's members until the new machine is alone.
func (w *world) controlPlaneRolls(ctx context.Context) {
	kcp, err := w.get(ctx, namespace, "kubeadmcontrolplanes", cluster+"-control-plane")
	require.NoError(w.t, err)
	old, _, err := unstructured.NestedString(fields(kcp), "spec", "machineTemplate", "spec", "infrastructureRef", "name")
	require.NoError(w.t, err)
	template, err := w.get(ctx, namespace, "kvmmachinetemplates", old)
	require.NoError(w.t, err)
	spec, _, err := unstructured.NestedMap(fields(template), "spec")
	require.NoError(w.t, err)
	next := &unstructured.Unstructured{Object: map[string]any{"apiVersion": template.GetAPIVersion(), "kind": template.GetKind(), "spec": spec}}
	next.SetName(old + "-2")
	next.SetNamespace(namespace)
	require.NoError(w.t, set(next, fmt.Sprintf("%dMi", rolledMemory), "spec.template.spec.resources.memory"))
	// The first machine has etcd on a path of its host, this one on a claim.
	require.NoError(w.t, set(next, map[string]any{"size": "2Gi", "claimTemplate": map[string]any{
		"accessModes": []any{"ReadWriteOnce"}, "storageClassName": storageClass, "resources": map[string]any{"requests": map[string]any{"storage": "3Gi"}},
	}}, "spec.template.spec.etcdVolume"))
	text, err := objects{next}.manifest()
	require.NoError(w.t, err)
	w.apply(ctx, text)
	before := w.controlPlanes(ctx)
	require.Len(w.t, before, 1)
	w.must(ctx, w.kubectl, "-n", namespace, "patch", "kubeadmcontrolplane", kcp.GetName(), "--type=merge", "-p",
		`{"spec":{"machineTemplate":{"spec":{"infrastructureRef":{"name":"`+next.GetName()+`"}}}}}`)

	w.etcdCertificate(ctx, namespace, cluster)
	etcd, failed := &observer{}, []string{}
	w.eventually(ctx, 2*long, "the control plane is one new machine", func(ctx context.Context) error {
		machines, err := w.list(ctx, w.mc, "kvmmachines", "-n", namespace, "-l", "cluster.x-k8s.io/control-plane")
		if err != nil {
			return err
		}
		problem := problemOf(machines)
		switch name := failedBootstrap(machines, append(failed, before[0])...); {
		case name != "" && len(failed) == mostFailures:
			return errors.Join(errHopeless, problem)
		case name != "":
			// What the MachineHealthCheck does after the time that a node has to come up; KubeadmControlPlane makes another one, and removes the member that was left.
			w.say("  kubeadm gave up on %s, so it is deleted: %s", name, tail(fmt.Sprint(problem), 400))
			failed = append(failed, name)
			w.must(ctx, w.kubectl, "-n", namespace, "delete", "machine", name, "--wait=false")
			return fmt.Errorf("machine %s is replaced", name)
		}
		now := w.controlPlanes(ctx)
		u, err := w.get(ctx, namespace, "kubeadmcontrolplanes", kcp.GetName())
		if err != nil {
			return err
		}
		far := needCondition(u, "Available")
		if len(now) != 1 || now[0] == before[0] {
			far = fmt.Errorf("control plane machines: %s", strings.Join(now, ", "))
		}
		if err := w.observe(ctx, etcd, fmt.Sprint(now, problem, far == nil), far == nil); err != nil {
			return err
		}
		return far
	})
	after := w.controlPlanes(ctx)[0]
	w.membersWereRight(etcd.seen, before[0], after, failed)
	require.NotEmpty(w.t, w.onHosts("var", "lib", storageClass, "*", etcdDisk), "etcd's disk lies on a claim")
	w.waitNodes(ctx, long, 1)
}

// storageClass makes local volumes of the lab's hosts.
const storageClass = "lab-local"

// mostFailures is how often a new control plane may fail to come up: where two cores emulate both machines, kubeadm does not always get its TLS connection to etcd within the two seconds that it
// gives it, and never asks twice.
const mostFailures = 2

// failedBootstrap is the machine, if any, on which kubeadm gave up and that is not being deleted yet. A Machine that was deleted is drained before its KVMMachine is
// deleted, so those that are known are left out.
func failedBootstrap(machines []unstructured.Unstructured, known ...string) string {
	for i := range machines {
		_, detail := condition(&machines[i], "BootstrapExecSucceeded")
		if !slices.Contains(known, machines[i].GetName()) && machines[i].GetDeletionTimestamp() == nil && strings.HasPrefix(detail, bootstrapFailed) {
			return machines[i].GetName()
		}
	}
	return ""
}

// observer remembers which members etcd had, and when it was asked.
type observer struct {
	// seen are the lists of members, one after the other, each once.
	seen  []string
	stage string
	asked time.Time
}

// restBetweenQuestions is how long etcd is left alone while nothing changes that the management cluster knows of. Two emulated control planes have no time for questions: their etcd did not
// finish a TLS handshake while it was asked every 15 seconds, and had caught up after three minutes in peace.
const restBetweenQuestions = 4 * time.Minute

// observe asks etcd for its members when what the management cluster knows has changed, when the last answer is old, and when the answer is needed now.
func (w *world) observe(ctx context.Context, o *observer, stage string, now bool) error {
	if !now && stage == o.stage && w.clock.Since(o.asked) < restBetweenQuestions {
		return nil
	}
	o.stage, o.asked = stage, w.clock.Now()
	members, err := w.etcdMembers(ctx, namespace)
	switch {
	case err != nil && (now || len(o.seen) == 0):
		return err
	case err != nil:
		w.say("  etcd's members cannot be asked now: %s", firstLine(err))
		return nil
	}
	if len(o.seen) == 0 || o.seen[len(o.seen)-1] != members {
		o.seen = append(o.seen, members)
		w.say("  etcd members: %s", members)
	}
	return nil
}

// membersWereRight says whether etcd went from the old member to the new one by way of both, at every moment that was seen. Members without a vote may come and go: those of machines that failed, and
// those that have not started yet and have no name.
func (w *world) membersWereRight(seen []string, before, after string, failed []string) {
	w.t.Helper()
	both := []string{before, after}
	slices.Sort(both)
	way := []string{before, strings.Join(both, ", "), after}
	at := 0
	for _, members := range seen {
		var voters, learners []string
		for name := range strings.SplitSeq(members, ", ") {
			if without, is := strings.CutSuffix(name, learner); is {
				learners = append(learners, without)
				continue
			}
			voters = append(voters, name)
		}
		next := slices.Index(way[at:], strings.Join(voters, ", "))
		require.GreaterOrEqual(w.t, next, 0, "etcd's members were %q after %q", members, way[at])
		at += next
		require.LessOrEqual(w.t, len(learners), 1, members)
		for _, name := range learners {
			require.Contains(w.t, append([]string{"", after}, failed...), name, members)
		}
	}
	require.NotEmpty(w.t, seen)
	assert.Equal(w.t, before, seen[0], "etcd begins with the old member alone")
	assert.Equal(w.t, after, seen[len(seen)-1], "etcd ends with the new member alone")
}

// learner follows the name of a member without a vote.
const learner = " (learner)"

func (w *world) controlPlanes(ctx context.Context) []string {
	w.t.Helper()
	machines, err := w.list(ctx, w.mc, "kvmmachines", "-n", namespace, "-l", "cluster.x-k8s.io/control-plane")
	require.NoError(w.t, err)
	names := make([]string, 0, len(machines))
	for i := range machines {
		names = append(names, machines[i].GetName())
	}
	slices.Sort(names)
	return names
}

// etcdCertificate makes a client certificate of a cluster's etcd.
func (w *world) etcdCertificate(ctx context.Context, namespace, cluster string) {
	w.t.Helper()
	secret, err := w.get(ctx, namespace, "secrets", cluster+"-etcd")
	require.NoError(w.t, err)
	data := map[string][]byte{}
	for _, key := range []string{"tls.crt", "tls.key"} {
		encoded, _, err := unstructured.NestedString(fields(secret), "data", key)
		require.NoError(w.t, err)
		data[key], err = base64.StdEncoding.DecodeString(encoded)
		require.NoError(w.t, err)
	}
	ca, err := tls.X509KeyPair(data["tls.crt"], data["tls.key"])
	require.NoError(w.t, err)
	client, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(w.t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(w.clock.Now().UnixNano()), Subject: pkix.Name{CommonName: "e2e"},
		NotBefore: w.clock.Now().Add(-time.Hour), NotAfter: w.clock.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca.Leaf, &client.PublicKey, ca.PrivateKey)
	require.NoError(w.t, err)
	raw, err := x509.MarshalECPrivateKey(client)
	require.NoError(w.t, err)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
	for name, content := range map[string][]byte{"etcd-ca.crt": data["tls.crt"], "etcd.crt": cert, "etcd.key": key} {
		require.NoError(w.t, os.WriteFile(filepath.Join(w.work, name), content, 0o600))
	}
}

// etcdMembers lists the names of etcd's members, sorted, as any control plane machine sees them.
func (w *world) etcdMembers(ctx context.Context, namespace string) (string, error) {
	machines, err := w.list(ctx, w.mc, "kvmmachines", "-n", namespace, "-l", "cluster.x-k8s.io/control-plane")
	if err != nil {
		return "", err
	}
	last := errors.New("no control plane machine has an address")
	for i := range machines {
		address := internalIP(&machines[i])
		if address == "" {
			continue
		}
		out, err := w.run(ctx, "", w.inside(w.etcdctl(), "--endpoints", "https://"+address+":2379", "--cacert", filepath.Join(w.work, "etcd-ca.crt"),
			"--cert", filepath.Join(w.work, "etcd.crt"), "--key", filepath.Join(w.work, "etcd.key"), "--command-timeout", "10s", "member", "list", "-w", "json")...)
		if err != nil {
			last = err
			continue
		}
		var list struct {
			Members []struct {
				Name      string `json:"name"`
				IsLearner bool   `json:"isLearner"`
			} `json:"members"`
		}
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return "", fmt.Errorf("reading etcd's member list: %w", err)
		}
		names := make([]string, 0, len(list.Members))
		for _, m := range list.Members {
			if m.IsLearner {
				m.Name += learner
			}
			names = append(names, m.Name)
		}
		slices.Sort(names)
		return strings.Join(names, ", "), nil
	}
	return "", last
}

// reasons are those of the events about a machine.
func (w *world) reasons(ctx context.Context, name string) []string {
	w.t.Helper()
	events, err := w.list(ctx, w.mc, "events", "-n", namespace, "--field-selector", "involvedObject.name="+name)
	require.NoError(w.t, err)
	out := make([]string, 0, len(events))
	for i := range events {
		reason, _, err := unstructured.NestedString(events[i].Object, "reason")
		require.NoError(w.t, err)
		out = append(out, reason)
	}
	return out
}

func internalIP(u *unstructured.Unstructured) string {
	list, _, err := unstructured.NestedSlice(u.Object, "status", "addresses")
	if err != nil {
		return ""
	}
	for _, a := range list {
		if m, ok := a.(map[string]any); ok && m["type"] == "InternalIP" {
			return fmt.Sprint(m["address"])
		}
	}
	return ""
}

// hostIsDrained drains a host that has workers and no control plane. Its guests are drained first, and their machines are replaced elsewhere.
func (w *world) hostIsDrained(ctx context.Context) {
	host, gone := w.workersHost(ctx)
	if host == "" {
		w.workerMoves(ctx)
		host, gone = w.workersHost(ctx)
	}
	require.NotEmpty(w.t, host, "a host with workers and without the control plane")
	size := w.size(ctx)
	w.say("  draining %s with %v", host, gone)
	w.must(ctx, w.kubectl, "drain", host, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout", "50m")
	for _, name := range gone {
		assert.Contains(w.t, w.reasons(ctx, name), "Drained", "events of %s", name)
	}
	w.eventually(ctx, 2*long, "the drained machines are replaced", func(ctx context.Context) error {
		if err := w.needGone(ctx, gone...); err != nil {
			return err
		}
		nodes, err := w.list(ctx, w.wc, "nodes")
		if err != nil {
			return err
		}
		return needNodes(nodes, size)
	})
	w.must(ctx, w.kubectl, "uncordon", host)
}

// workersHost is a host with workers and without the control plane, and the workers on it; empty when there is none.
func (w *world) workersHost(ctx context.Context) (string, []string) {
	w.t.Helper()
	hosts, controlPlane := w.placement(ctx)
	require.NotEmpty(w.t, controlPlane, "the host of the control plane")
	delete(hosts, controlPlane)
	for host, workers := range hosts {
		return host, workers
	}
	return "", nil
}

// placement tells which workers' pods run on which host, and on which host the control plane's runs.
func (w *world) placement(ctx context.Context) (workers map[string][]string, controlPlane string) {
	w.t.Helper()
	pods, err := w.list(ctx, w.mc, "pods", "-n", namespace)
	require.NoError(w.t, err)
	workers = map[string][]string{}
	for i := range pods {
		host, _, err := unstructured.NestedString(pods[i].Object, "spec", "nodeName")
		require.NoError(w.t, err)
		// Pods have the provider's own labels, not those of their Machines.
		if pods[i].GetLabels()[infrav1.RoleLabel] == infrav1.RoleControlPlane {
			controlPlane = host
		} else {
			workers[host] = append(workers[host], pods[i].GetName())
		}
	}
	return workers, controlPlane
}

// workerMoves replaces one worker by a machine on a host without the control plane. A drain of the host that has all machines could not end: the workload's budget lets no pod go while
// there is no other node, and the control plane is refused its eviction anyway.
func (w *world) workerMoves(ctx context.Context) {
	_, full := w.placement(ctx)
	name, size := w.worker(ctx), w.size(ctx)
	w.say("  all machines share the control plane's host %s: %s is replaced elsewhere first", full, name)
	w.must(ctx, w.kubectl, "cordon", full)
	w.must(ctx, w.kubectl, "-n", namespace, "delete", "machine", name, "--wait=false")
	w.eventually(ctx, 2*long, "a worker runs on another host", func(ctx context.Context) error {
		if err := w.needGone(ctx, name); err != nil {
			return err
		}
		nodes, err := w.list(ctx, w.wc, "nodes")
		if err != nil {
			return err
		}
		return needNodes(nodes, size)
	})
	w.must(ctx, w.kubectl, "uncordon", full)
}

// needGone is an error while one of the KVMMachines is there.
func (w *world) needGone(ctx context.Context, names ...string) error {
	for _, name := range names {
		u, err := w.get(ctx, namespace, "kvmmachines", name)
		if err != nil {
			return err
		}
		if u != nil {
			return fmt.Errorf("%s is still there", name)
		}
	}
	return nil
}
