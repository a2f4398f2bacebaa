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
)

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
	require.NoError(w.t, set(next, "2816Mi", "spec.template.spec.resources.memory"))
	text, err := objects{next}.manifest()
	require.NoError(w.t, err)
	w.apply(ctx, text)
	before := w.controlPlanes(ctx)
	require.Len(w.t, before, 1)
	w.must(ctx, w.kubectl, "-n", namespace, "patch", "kubeadmcontrolplane", kcp.GetName(), "--type=merge", "-p",
		`{"spec":{"machineTemplate":{"spec":{"infrastructureRef":{"name":"`+next.GetName()+`"}}}}}`)

	w.etcdCertificate(ctx)
	var seen []string
	w.eventually(ctx, 2*long, "the control plane is one new machine", func(ctx context.Context) error {
		members, err := w.etcdMembers(ctx)
		if err != nil {
			return err
		}
		if len(seen) == 0 || seen[len(seen)-1] != members {
			seen = append(seen, members)
			w.say("  etcd members: %s", members)
		}
		now := w.controlPlanes(ctx)
		if len(now) != 1 || now[0] == before[0] {
			return fmt.Errorf("control plane machines: %s", strings.Join(now, ", "))
		}
		u, err := w.get(ctx, namespace, "kubeadmcontrolplanes", kcp.GetName())
		if err != nil {
			return err
		}
		return needCondition(u, "Available")
	})
	require.NotEmpty(w.t, seen)
	assert.Equal(w.t, before[0], strings.TrimSuffix(seen[0], " (learner)"), "etcd begins with the old member alone")
	assert.NotContains(w.t, seen[len(seen)-1], before[0], "etcd ends without the old member")
	w.waitNodes(ctx, long, 3)
	w.workloadAnswers(ctx)
}

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

// etcdCertificate makes a client certificate of the workload cluster's etcd.
func (w *world) etcdCertificate(ctx context.Context) {
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
func (w *world) etcdMembers(ctx context.Context) (string, error) {
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
				m.Name += " (learner)"
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

// hostIsDrained drains the host on which no control plane runs. Its guests are drained first, and their machines are replaced elsewhere.
func (w *world) hostIsDrained(ctx context.Context) {
	pods, err := w.list(ctx, w.mc, "pods", "-n", namespace)
	require.NoError(w.t, err)
	controlPlane, workers := "", map[string][]string{}
	for i := range pods {
		host, _, err := unstructured.NestedString(pods[i].Object, "spec", "nodeName")
		require.NoError(w.t, err)
		if _, ok := pods[i].GetLabels()["cluster.x-k8s.io/control-plane"]; ok {
			controlPlane = host
		} else {
			workers[host] = append(workers[host], pods[i].GetName())
		}
	}
	host := ""
	for h := range workers {
		if h != controlPlane {
			host = h
		}
	}
	if host == "" {
		w.say("  all machines share the control plane's host %s: draining it must be refused for the control plane", controlPlane)
		host = controlPlane
	}
	gone := workers[host]
	w.say("  draining %s with %v", host, gone)
	limit := "25m"
	if host == controlPlane {
		limit = "10m" // What may go does; the control plane never does, so this drain cannot end by itself.
	}
	out, err := w.mc(ctx, "drain", host, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout", limit)
	if host == controlPlane {
		require.Error(w.t, err, out)
		assert.Contains(w.t, w.reasons(ctx, w.controlPlanes(ctx)[0]), "EvictionRefused", "events of the control plane machine")
	} else {
		require.NoError(w.t, err)
	}
	for _, name := range gone {
		assert.Contains(w.t, w.reasons(ctx, name), "Drained", "events of %s", name)
	}
	w.eventually(ctx, 2*long, "the drained machines are replaced", func(ctx context.Context) error {
		for _, name := range gone {
			u, err := w.get(ctx, namespace, "kvmmachines", name)
			if err != nil {
				return err
			}
			if u != nil {
				return fmt.Errorf("%s is still there", name)
			}
		}
		nodes, err := w.list(ctx, w.wc, "nodes")
		if err != nil {
			return err
		}
		return needNodes(nodes, 3)
	})
	w.must(ctx, w.kubectl, "uncordon", host)
}
