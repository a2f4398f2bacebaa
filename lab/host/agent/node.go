package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strings"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// startNode registers the Node and keeps its status and lease fresh until ctx ends.
func startNode(ctx context.Context, opts *Options) (*node.NodeController, error) {
	object, err := describe(opts)
	if err != nil {
		return nil, err
	}
	if err := relabel(ctx, opts, object); err != nil {
		return nil, err
	}
	controller, err := node.NewNodeController(node.NewNaiveNodeProvider(), object, opts.Client.CoreV1().Nodes(),
		node.WithNodeEnableLeaseV1(opts.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease), node.DefaultLeaseDuration))
	if err != nil {
		return nil, fmt.Errorf("preparing the Node: %w", err)
	}
	go func() { _ = controller.Run(ctx) }() // The controller's Err tells.
	select {
	case <-controller.Ready():
		return controller, nil
	case <-controller.Done():
		return nil, fmt.Errorf("registering node %s: %w", opts.Name, controller.Err())
	}
}

// relabel brings the labels of an already registered Node up to date, which the library does not do.
func relabel(ctx context.Context, opts *Options, object *corev1.Node) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": object.Labels}})
	if err != nil {
		return fmt.Errorf("encoding labels: %w", err)
	}
	_, err = opts.Client.CoreV1().Nodes().Patch(ctx, opts.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("labelling node %s: %w", opts.Name, err)
	}
	return nil
}

func describe(opts *Options) (*corev1.Node, error) {
	var system unix.Utsname
	if err := unix.Uname(&system); err != nil {
		return nil, fmt.Errorf("asking the kernel for its version: %w", err)
	}
	machine, err := os.ReadFile("/etc/machine-id")
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("reading the machine's id: %w", err)
	}
	now := metav1.NewTime(opts.Clock.Now())
	labels := map[string]string{
		corev1.LabelHostname: opts.Name, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
	}
	maps.Copy(labels, opts.Labels)
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{
			Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now,
		}
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: opts.Name, Labels: labels},
		Spec:       corev1.NodeSpec{PodCIDR: opts.PodRange.String(), PodCIDRs: []string{opts.PodRange.String()}},
		Status: corev1.NodeStatus{
			Capacity: opts.Capacity, Allocatable: opts.Capacity,
			// No host name: an API server would prefer it for logs and exec, and nothing resolves it.
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: opts.Address.String()}},
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
				condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "lab-host is posting ready status"),
			},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: strings.TrimSpace(string(machine)) + "-" + opts.Name, SystemUUID: opts.Name, BootID: opts.Name,
				KernelVersion: unix.ByteSliceToString(system.Release[:]), OSImage: "lab-host", ContainerRuntimeVersion: "lab-host://1",
				KubeletVersion: opts.Version, OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
			},
		},
	}
	if opts.Listener != nil {
		if port := portOf(opts.Listener); port > 0 {
			n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
		}
	}
	return n, nil
}
