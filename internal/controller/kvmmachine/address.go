package kvmmachine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// rememberAddress records the address with which the virtual machine was provisioned. Whoever has mended a guest that got another one takes the record away, and the new one is recorded.
func (r *Reconciler) rememberAddress(ctx context.Context, s *scope) error {
	address := vmpod.GuestIP(s.pod)
	if address == "" || !provisioned(s.machine) || s.machine.Annotations[infrav1.AddressAnnotation] != "" {
		return nil
	}
	return r.record(ctx, s.machine, map[string]string{infrav1.AddressAnnotation: address}, "")
}

// moved tells of a virtual machine that runs with another address than it was provisioned with, as it does when its pod's network is made anew, by a restart of the host for example, and the network plugin gives
// another address. Its disks carry the old one, and nothing else would say what is wrong: the pod runs, and a worker's Node goes on being ready with an address that leads nowhere.
func moved(v verdict, m *infrav1.KVMMachine, pod *corev1.Pod) verdict {
	first, now := m.Annotations[infrav1.AddressAnnotation], vmpod.GuestIP(pod)
	if v.status != metav1.ConditionTrue || first == "" || now == "" || now == first {
		return v
	}
	means := "a kubelet that was given it by --node-ip goes on telling it, and what is sent there gets lost: delete the Machine to get another"
	if contract.Role(pod.Labels[infrav1.RoleLabel]) == contract.RoleControlPlane {
		means = "etcd can listen on no other and stays down, and the API server with it: delete the Machine to get another, but only while etcd has its majority without it; " +
			"otherwise its disks are what is left of the cluster, and the old address has to be given back, or the guest mended"
	}
	return no(ReasonAddressChanged, fmt.Sprintf("the pod has the address %s now and had %s when the machine was provisioned, which is written on its disks: %s", now, first, means))
}
