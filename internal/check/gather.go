package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// page is how many objects one answer of the API server holds; a fleet has tens of thousands of pods.
const page = 500

// Gather completes the facts with what only a live management cluster can tell: CRDs and controllers, the target namespace, the other
// legacy clusters, and what the pods of each host ask for. It only reads, one list per kind, and of Secrets only metadata.
//
// What cannot be read is noted in Facts.Unread, where it turns the checks that need it into errors; the error returned is the sum,
// for a caller who wants to say so at once. Everything else has been gathered all the same.
func Gather(ctx context.Context, reader client.Reader, facts Facts) (Facts, error) {
	if facts.Namespace == "" && facts.Cluster != nil && facts.Cluster.Organization != "" {
		facts.Namespace = TargetNamespace(facts.Cluster.Organization)
	}
	unread := map[Fact]string{}
	maps.Copy(unread, facts.Unread)
	facts.Unread = unread

	var problems []error
	for _, step := range []struct {
		fact Fact
		read func(context.Context, client.Reader, *Facts) error
	}{
		{Abilities, gatherCapabilities},
		{Occupancy, gatherTarget},
		{Draining, gatherDrainRules},
		{Others, gatherNeighbours},
		{Hosts, gatherUsage},
	} {
		if err := step.read(ctx, reader, &facts); err != nil {
			facts.Unread[step.fact] = reason(err)
			problems = append(problems, fmt.Errorf("gathering %s: %w", step.fact, err))
		}
	}
	return facts, failure.Join(problems...)
}

// reason shortens an API error to what a report should say.
func reason(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return "the account may not read it"
	case apierrors.IsUnauthorized(err):
		return "the account is not known"
	default:
		return err.Error()
	}
}

// list calls use for every object of a kind, page by page. A kind the server does not know has no objects.
func list[L client.ObjectList](ctx context.Context, reader client.Reader, into L, use func(L), options ...client.ListOption) error {
	token := ""
	for {
		err := reader.List(ctx, into, append([]client.ListOption{client.Limit(page), client.Continue(token)}, options...)...)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		use(into)
		if token = into.GetContinue(); token == "" {
			return nil
		}
	}
}

func untyped(group, version, kind string) *unstructured.UnstructuredList {
	found := &unstructured.UnstructuredList{}
	found.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: kind + "List"})
	return found
}

func gatherCapabilities(ctx context.Context, reader client.Reader, facts *Facts) error {
	found := &Capabilities{}
	crds := []legacy.CRD(nil)
	if facts.Fleet != nil {
		crds = facts.Fleet.CRDs
	}
	if crds == nil {
		err := list(ctx, reader, untyped("apiextensions.k8s.io", "v1", "CustomResourceDefinition"), func(batch *unstructured.UnstructuredList) {
			for n := range batch.Items {
				crds = append(crds, describeCRD(&batch.Items[n]))
			}
		})
		if err != nil {
			return fmt.Errorf("listing custom resource definitions: %w", err)
		}
	}
	for _, crd := range crds {
		if strings.HasSuffix(crd.Name, ".cluster.x-k8s.io") {
			found.CRDs = append(found.CRDs, crd)
		}
	}
	slices.SortFunc(found.CRDs, func(a, b legacy.CRD) int { return cmp.Compare(a.Name, b.Name) })

	operator := regexp.MustCompile(`^(kvm-operator|cluster-operator|cert-operator|flannel-operator|node-operator)(?:-v?(\d+)-(\d+)-(\d+))?`)
	err := list(ctx, reader, &appsv1.DeploymentList{}, func(batch *appsv1.DeploymentList) {
		for n := range batch.Items {
			deployment := &batch.Items[n]
			controller := Controller{Object: "Deployment/" + deployment.Namespace + "/" + deployment.Name, Replicas: 1, Version: imageVersion(deployment)}
			if deployment.Spec.Replicas != nil {
				controller.Replicas = *deployment.Spec.Replicas
			}
			if provider := deployment.Labels[labelProvider]; provider != "" {
				controller.Name = provider
				found.Controllers = append(found.Controllers, controller)
			} else if parts := operator.FindStringSubmatch(deployment.Name); parts != nil {
				controller.Name = parts[1]
				if parts[2] != "" {
					controller.Version = strings.Join(parts[2:], ".")
				}
				found.Operators = append(found.Operators, controller)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("listing deployments: %w", err)
	}
	byName := func(a, b Controller) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Object, b.Object)) }
	slices.SortFunc(found.Controllers, byName)
	slices.SortFunc(found.Operators, byName)
	facts.Capabilities = found
	return nil
}

// describeCRD reads names, labels and served versions. It copies nothing: the schemas of Cluster API are megabytes.
func describeCRD(object *unstructured.Unstructured) legacy.CRD {
	crd := legacy.CRD{Name: object.GetName(), Labels: object.GetLabels()}
	found, _, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", "versions")
	versions, _ := found.([]any)
	for _, one := range versions {
		version, _ := one.(map[string]any)
		if name, _ := version["name"].(string); name != "" && version["served"] == true {
			crd.Versions = append(crd.Versions, name)
		}
	}
	slices.Sort(crd.Versions)
	return crd
}

// imageVersion is the tag of the container called manager, or of the first one.
func imageVersion(deployment *appsv1.Deployment) string {
	containers := deployment.Spec.Template.Spec.Containers
	if len(containers) == 0 {
		return ""
	}
	image := containers[0].Image
	for _, container := range containers {
		if container.Name == "manager" {
			image = container.Image
		}
	}
	image, _, _ = strings.Cut(image, "@")
	_, tag, ok := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	if !ok {
		return ""
	}
	return strings.TrimPrefix(tag, "v")
}

func gatherTarget(ctx context.Context, reader client.Reader, facts *Facts) error {
	if facts.Namespace == "" {
		return errors.New("choosing the target namespace: the organization is not known")
	}
	found := &Target{Namespace: facts.Namespace}
	var namespace corev1.Namespace
	switch err := reader.Get(ctx, client.ObjectKey{Name: facts.Namespace}, &namespace); {
	case apierrors.IsNotFound(err):
		facts.Target = found
		return nil
	case err != nil:
		return fmt.Errorf("reading namespace %s: %w", facts.Namespace, err)
	}
	found.Exists, found.Labels = true, namespace.Labels
	found.Terminating = namespace.DeletionTimestamp != nil || namespace.Status.Phase == corev1.NamespaceTerminating

	for _, kind := range []schema.GroupVersionKind{
		{Version: "v1", Kind: "Secret"},
		{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Cluster"},
		{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Machine"},
		{Group: "controlplane.cluster.x-k8s.io", Version: "v1beta2", Kind: "KubeadmControlPlane"},
		{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta2", Kind: "KVMCluster"},
	} {
		// Metadata only: the values of other people's Secrets are none of our business.
		objects := &metav1.PartialObjectMetadataList{}
		objects.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		err := list(ctx, reader, objects, func(batch *metav1.PartialObjectMetadataList) {
			for n := range batch.Items {
				found.Objects = append(found.Objects, describeTarget(kind, &batch.Items[n]))
			}
		}, client.InNamespace(facts.Namespace))
		if err != nil {
			return fmt.Errorf("listing %s in %s: %w", kind.Kind, facts.Namespace, err)
		}
	}
	slices.SortFunc(found.Objects, func(a, b TargetObject) int { return cmp.Compare(a.Ref.String(), b.Ref.String()) })
	facts.Target = found
	return nil
}

func describeTarget(kind schema.GroupVersionKind, object *metav1.PartialObjectMetadata) TargetObject {
	managers := make([]string, 0, len(object.ManagedFields))
	for _, entry := range object.ManagedFields {
		managers = append(managers, entry.Manager)
	}
	return TargetObject{
		Ref: legacy.Ref{
			APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: object.Namespace, Name: object.Name,
			UID: object.UID, ResourceVersion: object.ResourceVersion,
		},
		Labels: object.Labels, Managers: distinct(managers),
	}
}

// gatherDrainRules is apart from what else the target namespace holds: an account that checks has seldom had a reason to read these.
func gatherDrainRules(ctx context.Context, reader client.Reader, facts *Facts) error {
	if facts.Namespace == "" {
		return errors.New("choosing the target namespace: the organization is not known")
	}
	rules := []string{}
	objects := &metav1.PartialObjectMetadataList{}
	objects.SetGroupVersionKind(schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: kindDrainRule + "List"})
	err := list(ctx, reader, objects, func(batch *metav1.PartialObjectMetadataList) {
		for n := range batch.Items {
			rules = append(rules, kindDrainRule+"/"+batch.Items[n].Namespace+"/"+batch.Items[n].Name)
		}
	}, client.InNamespace(facts.Namespace))
	if err != nil {
		return fmt.Errorf("listing %s in %s: %w", kindDrainRule, facts.Namespace, err)
	}
	slices.Sort(rules)
	facts.DrainRules = rules
	return nil
}

func gatherNeighbours(ctx context.Context, reader client.Reader, facts *Facts) error {
	found := []Neighbour{}
	// Untyped: the legacy type would fail on objects of other ages, and two fields are all that is wanted.
	err := list(ctx, reader, untyped("provider.giantswarm.io", "v1alpha1", "KVMConfig"), func(batch *unstructured.UnstructuredList) {
		for n := range batch.Items {
			name := batch.Items[n].GetName()
			if facts.Cluster != nil && name == facts.Cluster.ID {
				continue
			}
			found = append(found, Neighbour{ID: name, VNI: nestedInt(batch.Items[n].Object, "spec", "kvm", "network", "flannel", "vni")})
		}
	})
	if err != nil {
		return fmt.Errorf("listing KVMConfigs: %w", err)
	}
	slices.SortFunc(found, func(a, b Neighbour) int { return cmp.Compare(a.ID, b.ID) })
	facts.Neighbours = found
	return nil
}

// nestedInt reads a number whichever way it was decoded.
func nestedInt(object map[string]any, path ...string) int {
	value, _, _ := unstructured.NestedFieldNoCopy(object, path...)
	switch number := value.(type) {
	case int64:
		return int(number)
	case float64:
		return int(number)
	default:
		return 0
	}
}

func gatherUsage(ctx context.Context, reader client.Reader, facts *Facts) error {
	found := map[string]Usage{}
	err := list(ctx, reader, &corev1.PodList{}, func(batch *corev1.PodList) {
		for n := range batch.Items {
			pod := &batch.Items[n]
			if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
				continue
			}
			sum, ask := found[pod.Spec.NodeName], podRequest(pod)
			found[pod.Spec.NodeName] = Usage{CPU: sum.CPU + ask.CPU, Memory: sum.Memory + ask.Memory}
		}
	})
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	facts.Usage = found
	return nil
}
