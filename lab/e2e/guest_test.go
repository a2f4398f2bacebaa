//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The inspector is how the tests look into a guest: a pod on every node that may enter the node's own file system.
const inspectManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: inspect}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: inspect, namespace: inspect}
spec:
  selector: {matchLabels: {app: inspect}}
  template:
    metadata: {labels: {app: inspect}}
    spec:
      hostPID: true
      hostNetwork: true
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 1
      containers:
        - name: inspect
          image: registry.k8s.io/kube-proxy:` + kubernetesVersion + `
          imagePullPolicy: Never
          command: ["/bin/sh", "-c", "while true; do sleep 3600; done"]
          securityContext: {privileged: true}
          volumeMounts: [{name: root, mountPath: /host}]
      volumes: [{name: root, hostPath: {path: /}}]
`

// tryGuest runs a shell command in the guest's own root.
func (w *world) tryGuest(ctx context.Context, node, command string) (string, error) {
	pods, err := w.list(ctx, w.wc, "pods", "-n", "inspect", "-l", "app=inspect", "--field-selector", "spec.nodeName="+node)
	if err != nil {
		return "", err
	}
	for i := range pods {
		if phase, _, _ := unstructured.NestedString(pods[i].Object, "status", "phase"); phase == "Running" && pods[i].GetDeletionTimestamp() == nil {
			return w.wc(ctx, "-n", "inspect", "exec", pods[i].GetName(), "--", "chroot", "/host", "/bin/sh", "-c", command)
		}
	}
	return "", fmt.Errorf("no inspector runs on %s", node)
}

// guest is tryGuest for what has to work.
func (w *world) guest(ctx context.Context, node, command string) string {
	w.t.Helper()
	var out string
	w.eventually(ctx, medium, "the inspector on "+node+" answers", func(ctx context.Context) error {
		var err error
		out, err = w.tryGuest(ctx, node, command)
		return err
	})
	return strings.TrimSpace(out)
}

// tryBootID identifies one boot of a guest.
func (w *world) tryBootID(ctx context.Context, node string) (string, error) {
	out, err := w.tryGuest(ctx, node, "cat /proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(out), err
}

func (w *world) bootID(ctx context.Context, node string) string {
	w.t.Helper()
	return w.guest(ctx, node, "cat /proc/sys/kernel/random/boot_id")
}

// killVM ends the QEMU process of a machine, as the kernel's out-of-memory killer would.
func (w *world) killVM(_ context.Context, name string) {
	w.t.Helper()
	pids, err := qemus(name)
	require.NoError(w.t, err)
	require.Len(w.t, pids, 1, "QEMU processes of %s", name)
	require.NoError(w.t, syscall.Kill(pids[0], syscall.SIGKILL))
}

// qemus are the processes that run a machine: QEMU, started with the machine's name.
func qemus(name string) ([]int, error) {
	return processes(func(argv []string) bool {
		if !strings.HasPrefix(filepath.Base(argv[0]), "qemu-system-") {
			return false
		}
		for i, a := range argv {
			if a == "-name" && i+1 < len(argv) && (argv[i+1] == name || strings.HasPrefix(argv[i+1], name+",") || strings.HasPrefix(argv[i+1], "guest="+name)) {
				return true
			}
		}
		return false
	})
}

// processes are those of this machine whose command line is the wanted one.
func processes(wanted func(argv []string) bool) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue // it ended while we were looking
		}
		if wanted(strings.Split(string(raw), "\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// fact is something that must be true inside a guest.
type fact struct {
	what, command, want string
}

// ask runs the commands of all facts inside a guest, and returns what each of them printed. They go in one question: without hardware
// virtualization the way into the guest takes a minute, whatever is asked there.
func (w *world) ask(ctx context.Context, node string, facts []fact) []string {
	w.t.Helper()
	const mark = "=== next fact"
	var script strings.Builder
	for _, f := range facts {
		script.WriteString("echo '" + mark + "'; ( " + f.command + " ) 2>&1; ")
	}
	answers := strings.Split(w.guest(ctx, node, script.String()+"true"), mark)[1:]
	require.Len(w.t, answers, len(facts))
	return answers
}

// resolvers prints which DNS servers a guest asks.
const resolvers = "resolvectl dns 2>/dev/null; cat /run/systemd/resolve/resolv.conf /etc/resolv.conf"

// disks prints the name and the size in bytes of each of a guest's disks.
const disks = "lsblk -bdno SERIAL,SIZE | xargs"

func commonFacts(node string) []fact {
	return []fact{
		{"host name", "hostname", node},
		{"SSH user", "cat /home/" + sshUser + "/.ssh/authorized_keys", sshKey},
		{"registry mirror", "cat /etc/containerd/certs.d/docker.io/hosts.toml", mirrorHost},
		{"proxy of the container runtime", "systemctl show containerd -p Environment", proxyURL},
		{"container runtime's disk", "findmnt -no SOURCE,SIZE /var/lib/containerd", "/dev/"},
		{"size of the root disk", disks, "root 10000000000"},
		{"size of the container runtime's disk", disks, "docker 6000000000"},
		{"setting of the kubelet", "cat /var/lib/kubelet/config.yaml", "localStorageCapacityIsolation: false"},
	}
}

func processorsOf(number string) fact {
	return fact{"processors", "nproc | sed s/^/processors:/", "processors:" + number + "\n"}
}

// memoryUpTo prints whether a guest has the memory its machine was given, in MiB. The kernel keeps some of it for itself, a twentieth here.
func memoryUpTo(mebibytes int) string {
	const kibi, kept = 1024, 10
	most := mebibytes * kibi
	return fmt.Sprintf(`awk '/^MemTotal/ {print ($2 <= %d && $2 > %d) ? "as it should be" : "it is " $2}' /proc/meminfo`, most, most-most/kept)
}

// nodes are those of the workload cluster. Its API server is slow without hardware virtualization, so one answer that comes too late is no failure.
func (w *world) nodes(ctx context.Context) []unstructured.Unstructured {
	w.t.Helper()
	var nodes []unstructured.Unstructured
	w.eventually(ctx, short, "the workload cluster lists its nodes", func(ctx context.Context) (err error) {
		nodes, err = w.list(ctx, w.wc, "nodes")
		return err
	})
	return nodes
}

func (w *world) inspectorIsApplied(ctx context.Context) {
	w.t.Helper()
	w.eventually(ctx, short, "the inspector is applied", func(ctx context.Context) error { return w.wcApply(ctx, inspectManifest) })
}

func (w *world) settingsAreSeen(ctx context.Context) {
	w.inspectorIsApplied(ctx)
	nodes := w.nodes(ctx)
	for i := range nodes {
		name := nodes[i].GetName()
		facts := commonFacts(name)
		_, controlPlane := nodes[i].GetLabels()["node-role.kubernetes.io/control-plane"]
		if controlPlane {
			facts = append(facts, processorsOf(controlPlaneProcessors),
				fact{"DNS server", resolvers, dnsServer},
				fact{"search domain", "resolvectl domain 2>/dev/null; cat /run/systemd/resolve/resolv.conf /etc/resolv.conf", searchDomain},
				fact{"NTP server", "cat /etc/systemd/timesyncd.conf.d/*.conf /etc/chrony/sources.d/*.sources 2>/dev/null", ntpServer},
				fact{"iSCSI initiator", "cat /etc/iscsi/initiatorname.iscsi", "InitiatorName=" + iscsiPrefix},
				fact{"etcd's disk", "findmnt -no SOURCE /var/lib/etcd", "/dev/vd"},
				fact{"size of etcd's disk", disks, "etcd 2147483648"},
				fact{"memory", memoryUpTo(rolledMemory), "as it should be"},
				fact{"API server flag", "cat /etc/kubernetes/manifests/kube-apiserver.yaml", "--api-audiences=https://issuer.example,customer"},
			)
		} else {
			facts = append(facts, processorsOf(workerProcessors),
				fact{"DNS server of the pod, as none is set", resolvers, podDNSServer},
				fact{"host volume", "findmnt -no FSTYPE /data/" + hostVolumeTag, "9p"},
				fact{"host volume is writable", "echo from-the-guest > /data/" + hostVolumeTag + "/e2e && cat /data/" + hostVolumeTag + "/e2e", "from-the-guest"},
				fact{"kubelet's disk", "findmnt -no SOURCE /var/lib/kubelet", "/dev/vd"},
				fact{"size of the kubelet's disk", disks, "kubelet 1073741824"},
				fact{"credentials of the registry", "stat -c %a /var/lib/kubelet/config.json; cat /var/lib/kubelet/config.json", "600\n" + registryAuth},
				fact{"memory", memoryUpTo(1536), "as it should be"},
			)
		}
		for i, got := range w.ask(ctx, name, facts) {
			require.Contains(w.t, got, facts[i].want, "%s of %s", facts[i].what, name)
			w.say("  %s: %s: ok", name, facts[i].what)
		}
		require.Equal(w.t, "lab", nodes[i].GetLabels()[nodeLabel], "label of node %s", name)
		machine, err := w.get(ctx, namespace, "kvmmachines", name)
		require.NoError(w.t, err)
		id, _, err := unstructured.NestedString(nodes[i].Object, "spec", "providerID")
		require.NoError(w.t, err)
		want, _, err := unstructured.NestedString(fields(machine), "spec", "providerID")
		require.NoError(w.t, err)
		require.Equal(w.t, want, id, "provider id of node %s", name)
	}
}
