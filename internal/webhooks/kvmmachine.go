package webhooks

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

const (
	initiatorIndex = "webhooks.initiatorName"
	podUIDIndex    = "webhooks.adoptedPodUID"

	providerPrefix = "kvm://"

	adviceMachine = "a virtual machine is made once: change the template, and new machines replace the old ones"
)

// Machine validates KVMMachines.
type Machine struct {
	// Reader finds other KVMMachines by initiator name and adopted pod. It has to be a cache with the indexes of SetupWithManager.
	Reader client.Reader
}

var _ admission.Validator[*infrav1.KVMMachine] = &Machine{}

// ValidateCreate checks a new KVMMachine: its name, its spec, and that it claims nothing another one has.
func (w *Machine) ValidateCreate(ctx context.Context, m *infrav1.KVMMachine) (admission.Warnings, error) {
	problems := machineName(m)
	problems = append(problems, machineSpec(field.NewPath("spec"), &m.Spec, m.Name)...)
	problems = append(problems, machineIdentity(m)...)
	taken, err := w.taken(ctx, m)
	if err != nil {
		return nil, err
	}
	return nil, refused("KVMMachine", m.Name, append(problems, taken...))
}

// ValidateUpdate checks that nothing changed that a running virtual machine cannot follow. What was accepted once is not judged again:
// a stricter release of this program must not keep finalizers on objects.
func (w *Machine) ValidateUpdate(_ context.Context, before, after *infrav1.KVMMachine) (admission.Warnings, error) {
	return nil, refused("KVMMachine", after.Name, machineChange(before, after))
}

// ValidateDelete lets every deletion pass.
func (w *Machine) ValidateDelete(context.Context, *infrav1.KVMMachine) (admission.Warnings, error) {
	return nil, nil
}

// refused makes the API error of a list of problems, nil for none.
func refused(kind, name string, problems field.ErrorList) error {
	if len(problems) == 0 {
		return nil
	}
	return apierrors.NewInvalid(infrav1.GroupVersion().WithKind(kind).GroupKind(), name, problems)
}

// machineName checks the name: it becomes the guest's host name and the Node's name.
func machineName(m *infrav1.KVMMachine) field.ErrorList {
	if m.Name == "" || len(validation.IsDNS1123Label(m.Name)) == 0 {
		return nil // Without a name one is generated from generateName, and the API server checks the result.
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), m.Name,
		"becomes the host name of the guest: at most 63 lower-case letters, digits and '-', beginning and ending with a letter or digit")}
}

// machineSpec checks what a machine and a template have in common.
func machineSpec(at *field.Path, s *infrav1.KVMMachineSpec, machine string) field.ErrorList {
	r := at.Child("resources")
	problems := size(r.Child("memory"), s.Resources.Memory, leastMemory, mostMemory)
	for _, disk := range []struct {
		name string
		size infrav1.Size
	}{{"disk", s.Resources.Disk}, {"dockerVolumeSize", s.Resources.DockerVolumeSize}, {"kubeletVolumeSize", s.Resources.KubeletVolumeSize}} {
		problems = append(problems, size(r.Child(disk.name), disk.size, leastDisk, mostDisk)...)
	}
	switch {
	case s.Image != "":
		problems = append(problems, imageName(at.Child("image"), s.Image)...)
	case s.Adopted == nil:
		problems = append(problems, field.Required(at.Child("image"), "the base image of the root disk: the name of an image of this installation, for example debian-12-kubernetes-1.36"))
	}
	problems = append(problems, hostVolumes(at.Child("hostVolumes"), s.HostVolumes)...)
	problems = append(problems, etcdVolume(at.Child("etcdVolume"), s.EtcdVolume)...)
	problems = append(problems, iscsi(at.Child("iscsi"), s.ISCSI, machine)...)
	if s.DNS != nil {
		problems = append(problems, each(at.Child("dns", "servers"), s.DNS.Servers, address)...)
		problems = append(problems, each(at.Child("dns", "searchDomains"), s.DNS.SearchDomains, dnsName)...)
	}
	if s.NTP != nil {
		problems = append(problems, each(at.Child("ntp", "servers"), s.NTP.Servers, host)...)
	}
	problems = append(problems, nodeSelector(at.Child("nodeSelector"), s.NodeSelector)...)
	return append(problems, adopted(at.Child("adopted"), s.Adopted)...)
}

func adopted(at *field.Path, a *infrav1.Adopted) field.ErrorList {
	if a == nil {
		return nil
	}
	var problems field.ErrorList
	if len(validation.IsDNS1123Label(a.PodRef.Namespace)) > 0 {
		problems = append(problems, field.Invalid(at.Child("podRef", "namespace"), a.PodRef.Namespace, "is no name of a namespace"))
	}
	problems = append(problems, dnsName(at.Child("podRef", "name"), a.PodRef.Name)...)
	problems = append(problems, dnsName(at.Child("nodeName"), a.NodeName)...)
	if a.Address != "" {
		problems = append(problems, address(at.Child("address"), a.Address)...)
	}
	return append(problems, finalizers(at.Child("releaseFinalizers"), a.ReleaseFinalizers)...)
}

func finalizers(at *field.Path, names []string) field.ErrorList {
	return each(at, names, func(at *field.Path, name string) field.ErrorList {
		if len(validation.IsQualifiedName(name)) == 0 {
			return nil
		}
		return field.ErrorList{field.Invalid(at, name, "is no finalizer, for example example.com/name")}
	})
}

// machineIdentity checks what only a machine has: its provider id, and whether etcd can be on it.
func machineIdentity(m *infrav1.KVMMachine) field.ErrorList {
	var problems field.ErrorList
	spec := field.NewPath("spec")
	if id := m.Spec.ProviderID; id != "" {
		problems = append(problems, providerID(spec.Child("providerID"), id, m)...)
	}
	pool := m.Labels[clusterv1.MachineDeploymentNameLabel]
	_, controlPlane := m.Labels[clusterv1.MachineControlPlaneLabel]
	if m.Spec.EtcdVolume != nil && pool != "" && !controlPlane {
		problems = append(problems, field.Forbidden(spec.Child("etcdVolume"),
			fmt.Sprintf("only control plane machines have etcd, and this one belongs to MachineDeployment %s; take it out of the KVMMachineTemplate of the workers", pool)))
	}
	return problems
}

func providerID(at *field.Path, id string, m *infrav1.KVMMachine) field.ErrorList {
	cluster := m.Labels[clusterv1.ClusterNameLabel]
	parts := strings.Split(strings.TrimPrefix(id, providerPrefix), "/")
	wellFormed := strings.HasPrefix(id, providerPrefix) && len(parts) == 2 && parts[0] != "" && parts[1] != ""
	if wellFormed && (cluster == "" || parts[0] == cluster) && (m.Name == "" || parts[1] == m.Name) {
		return nil
	}
	if cluster == "" {
		cluster = "<cluster>"
	}
	return field.ErrorList{field.Invalid(at, id, "has to be "+providerPrefix+cluster+"/"+m.Name+", or empty to let the provider set it")}
}

// taken finds other machines that have what this one claims for itself.
func (w *Machine) taken(ctx context.Context, m *infrav1.KVMMachine) (field.ErrorList, error) {
	var problems field.ErrorList
	if name := m.InitiatorName(); name != "" {
		other, err := w.other(ctx, m, initiatorIndex, name)
		if err != nil {
			return nil, err
		}
		at := field.NewPath("spec", "iscsi", "initiatorName")
		if m.Spec.ISCSI.InitiatorName == "" {
			at = field.NewPath("spec", "iscsi", "initiatorNamePrefix")
		}
		if other != "" {
			problems = append(problems, field.Invalid(at, name,
				fmt.Sprintf("is the initiator name of KVMMachine %s already: two machines with one name would write to the same volumes", other)))
		}
	}
	if m.Spec.Adopted != nil {
		other, err := w.other(ctx, m, podUIDIndex, m.Spec.Adopted.PodRef.UID)
		if err != nil {
			return nil, err
		}
		if other != "" {
			problems = append(problems, field.Invalid(field.NewPath("spec", "adopted", "podRef", "uid"), m.Spec.Adopted.PodRef.UID,
				fmt.Sprintf("is the pod of KVMMachine %s already", other)))
		}
	}
	return problems, nil
}

// other names another KVMMachine with a value in an index.
func (w *Machine) other(ctx context.Context, m *infrav1.KVMMachine, index, value string) (string, error) {
	list := &infrav1.KVMMachineList{}
	if err := w.Reader.List(ctx, list, client.MatchingFields{index: value}); err != nil {
		return "", apierrors.NewInternalError(fmt.Errorf("looking for other KVMMachines with %s: %w", value, err))
	}
	for i := range list.Items {
		if o := &list.Items[i]; o.Namespace != m.Namespace || o.Name != m.Name {
			return o.Namespace + "/" + o.Name, nil
		}
	}
	return "", nil
}

// machineChange allows what may change: the provider id once, the deletion policy, and for an adopted machine what is only about the
// objects around it.
func machineChange(before, after *infrav1.KVMMachine) field.ErrorList {
	spec := field.NewPath("spec")
	var problems field.ErrorList
	old, now := before.Spec.DeepCopy(), after.Spec.DeepCopy()
	if old.ProviderID == "" && now.ProviderID != "" {
		problems = providerID(spec.Child("providerID"), now.ProviderID, after)
		old.ProviderID = now.ProviderID
	}
	old.DeletionPolicy = now.DeletionPolicy
	if old.Adopted != nil && now.Adopted != nil {
		// No machine is ever made from this image: it says what a successor should have.
		old.Image = now.Image
		if !slices.Equal(old.Adopted.ReleaseFinalizers, now.Adopted.ReleaseFinalizers) {
			problems = append(problems, finalizers(spec.Child("adopted", "releaseFinalizers"), now.Adopted.ReleaseFinalizers)...)
		}
		old.Adopted.ReleaseFinalizers = now.Adopted.ReleaseFinalizers
	}
	return append(problems, unchanged(spec, old, now, adviceMachine)...)
}
