package webhooks

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/cluster-api/util/topology"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

const adviceTemplate = "a template is never changed, because nobody would know which machines were made from which version: make a new one and refer to it"

// MachineTemplate validates KVMMachineTemplates.
type MachineTemplate struct{}

var _ admission.Validator[*infrav1.KVMMachineTemplate] = &MachineTemplate{}

// ValidateCreate checks the spec of the machines to be.
func (*MachineTemplate) ValidateCreate(_ context.Context, t *infrav1.KVMMachineTemplate) (admission.Warnings, error) {
	at := field.NewPath("spec", "template", "spec")
	return oneAtATime(at, &t.Spec.Template.Spec), refused("KVMMachineTemplate", t.Name, machineSpec(at, &t.Spec.Template.Spec, ""))
}

// oneAtATime warns of a whole initiator name: who makes a second machine from the template learns only from his MachineSet that it is refused.
func oneAtATime(at *field.Path, s *infrav1.KVMMachineSpec) admission.Warnings {
	if s.ISCSI == nil || s.ISCSI.InitiatorName == "" {
		return nil
	}
	return admission.Warnings{fmt.Sprintf("%s is for one machine at a time: use it in a MachineDeployment of one replica with maxSurge 0 and maxUnavailable 1, and for no control plane; initiatorNamePrefix gives each machine a name of its own", at.Child("iscsi", "initiatorName"))}
}

// ValidateUpdate keeps the spec as it is. Cluster API's topology controller may ask what a change would look like.
func (*MachineTemplate) ValidateUpdate(ctx context.Context, before, after *infrav1.KVMMachineTemplate) (admission.Warnings, error) {
	if dryRun(ctx, after) {
		return nil, nil
	}
	return nil, refused("KVMMachineTemplate", after.Name, unchanged(field.NewPath("spec"), &before.Spec, &after.Spec, adviceTemplate))
}

// ValidateDelete lets every deletion pass.
func (*MachineTemplate) ValidateDelete(context.Context, *infrav1.KVMMachineTemplate) (admission.Warnings, error) {
	return nil, nil
}

// ClusterTemplate validates KVMClusterTemplates.
type ClusterTemplate struct{}

var _ admission.Validator[*infrav1.KVMClusterTemplate] = &ClusterTemplate{}

// ValidateCreate checks the spec of the clusters to be.
func (*ClusterTemplate) ValidateCreate(_ context.Context, t *infrav1.KVMClusterTemplate) (admission.Warnings, error) {
	at := field.NewPath("spec", "template", "spec")
	return nil, refused("KVMClusterTemplate", t.Name, clusterSpec(at, &t.Spec.Template.Spec))
}

// ValidateUpdate keeps the spec as it is, as for machines.
func (*ClusterTemplate) ValidateUpdate(ctx context.Context, before, after *infrav1.KVMClusterTemplate) (admission.Warnings, error) {
	if dryRun(ctx, after) {
		return nil, nil
	}
	return nil, refused("KVMClusterTemplate", after.Name, unchanged(field.NewPath("spec"), &before.Spec, &after.Spec, adviceTemplate))
}

// ValidateDelete lets every deletion pass.
func (*ClusterTemplate) ValidateDelete(context.Context, *infrav1.KVMClusterTemplate) (admission.Warnings, error) {
	return nil, nil
}

// dryRun says whether the topology controller only asks.
func dryRun(ctx context.Context, object metav1.Object) bool {
	request, err := admission.RequestFromContext(ctx)
	return err == nil && topology.IsDryRunRequest(request, object)
}
