package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/supervisor"
)

// statusLimit bounds how long a status waits for the API server: it is for
// looking at a lab that does not work, too.
const statusLimit = 10 * time.Second

// host is what the status says about a VM host.
type host struct {
	Name    string `json:"name"`
	Ready   bool   `json:"ready"`
	Address string `json:"address,omitempty"`
	Zone    string `json:"zone,omitempty"`
	// Pods is how many pods are there, Running how many of them run.
	Pods    int `json:"pods"`
	Running int `json:"running"`
	// Error says why the rest is not known.
	Error string `json:"error,omitempty"`
}

// hostStatus asks the API server about the hosts of a lab. What it does not
// answer is in the result, too: the rest of a status is worth having.
func hostStatus(ctx context.Context, state *supervisor.State) []host {
	if state.Hosts == 0 || state.Kubeconfig == "" {
		return nil
	}
	hosts := make([]host, state.Hosts)
	for i := range hosts {
		hosts[i] = host{Name: mc.HostName(i + 1)}
	}
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	if err := fillHosts(ctx, state.Kubeconfig, hosts); err != nil {
		for i := range hosts {
			hosts[i].Error = err.Error()
		}
	}
	return hosts
}

func fillHosts(ctx context.Context, kubeconfig string, hosts []host) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the lab's kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing hosts: %w", err)
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	for i := range hosts {
		h := &hosts[i]
		for _, n := range nodes.Items {
			if n.Name == h.Name {
				h.describe(&n)
			}
		}
		for _, p := range pods.Items {
			if p.Spec.NodeName == h.Name {
				h.Pods++
				if p.Status.Phase == corev1.PodRunning {
					h.Running++
				}
			}
		}
	}
	return nil
}

func (h *host) describe(node *corev1.Node) {
	h.Zone = node.Labels[corev1.LabelTopologyZone]
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			h.Address = a.Address
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			h.Ready = c.Status == corev1.ConditionTrue
		}
	}
}

func (e *env) hostsText(hosts []host) error {
	if len(hosts) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(e.Out, 0, 0, 2, ' ', 0)
	rows := []string{"", "HOST\tREADY\tADDRESS\tZONE\tPODS\tRUNNING"}
	for _, h := range hosts {
		if h.Error != "" {
			rows = append(rows, fmt.Sprintf("%s\tunknown (%s)", h.Name, h.Error))
			continue
		}
		rows = append(rows, fmt.Sprintf("%s\t%t\t%s\t%s\t%d\t%d", h.Name, h.Ready, h.Address, h.Zone, h.Pods, h.Running))
	}
	if _, err := fmt.Fprintln(table, strings.Join(rows, "\n")); err != nil {
		return err
	}
	return table.Flush()
}
