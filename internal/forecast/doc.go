// Package forecast tells what Cluster API would do to a cluster if nothing of it were paused: which Machines the KubeadmControlPlane and the
// MachineDeployments would make, replace or delete and why, which etcd member would be removed, which add-on changed.
//
// Where Cluster API v1.14 has importable decision code, that code decides: whether a Machine of a control plane is up to date
// (controlplane/kubeadm/pkg), and which MachineSet of a MachineDeployment is the current one (core/reconcilers/machinedeployment/mdutil). What is
// written anew is the order around it, from controlplane/kubeadm/reconcilers/kubeadmcontrolplane (reconcile, reconcileEtcdMembers, scale.go) and
// core/reconcilers/machineset; lab/adoption compares it with the real controllers.
package forecast
