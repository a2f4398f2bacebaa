package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
)

// Content is an object of a namespace, of whatever kind.
type Content struct {
	schema.GroupVersionKind

	Namespace, Name string
	// ServiceAccount is the name of the account whose token it is; empty for everything else.
	ServiceAccount string
}

// String is Kind/namespace/name, with the group where it is not the core's.
func (c Content) String() string { return c.GroupKind().String() + "/" + c.Namespace + "/" + c.Name }

// Contents lists everything in a namespace, of every kind that the API server can list: one request for each, metadata only. A kind that cannot be listed
// is an error, because it could have objects.
func (r *ReadOnly) Contents(ctx context.Context, namespace string) ([]Content, error) {
	questions, err := discovery.NewDiscoveryClientForConfig(r.config)
	if err != nil {
		return nil, fmt.Errorf("preparing to ask %s for its kinds: %w", r.Server, err)
	}
	objects, err := metadata.NewForConfig(r.config)
	if err != nil {
		return nil, fmt.Errorf("preparing to list namespace %s: %w", namespace, err)
	}
	groups, err := discovery.ServerPreferredNamespacedResources(questions)
	if err != nil {
		return nil, fmt.Errorf("asking %s for its kinds: %w", r.Server, err)
	}
	var out []Content
	for _, group := range groups {
		version, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("reading the kinds of %s: %w", r.Server, err)
		}
		for i := range group.APIResources {
			resource := &group.APIResources[i]
			if !slices.Contains(resource.Verbs, "list") {
				continue
			}
			found, err := objects.Resource(version.WithResource(resource.Name)).Namespace(namespace).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue // The kind went between two questions.
			}
			if err != nil {
				return nil, fmt.Errorf("listing %s in namespace %s: %w", resource.Name, namespace, err)
			}
			for n := range found.Items {
				o := &found.Items[n]
				out = append(out, Content{
					GroupVersionKind: version.WithKind(resource.Kind), Namespace: o.Namespace, Name: o.Name, ServiceAccount: o.Annotations[corev1.ServiceAccountNameKey],
				})
			}
		}
	}
	return out, nil
}

// Definition is a CustomResourceDefinition without its schemas.
type Definition struct {
	Name   string
	Labels map[string]string
	// Served are the versions in which the API server serves the kind, sorted; none where it has not accepted the definition.
	Served []string
}

// Definitions lists the CustomResourceDefinitions, sorted by name. It takes their metadata, and the versions from what the API server says that it serves: with the schemas, those of Cluster API
// and its providers alone are megabytes, to be encoded there, sent and decoded here before anything else begins.
func (r *ReadOnly) Definitions(ctx context.Context) ([]Definition, error) {
	objects, err := metadata.NewForConfig(r.config)
	if err != nil {
		return nil, fmt.Errorf("preparing to list CustomResourceDefinitions: %w", err)
	}
	found, err := objects.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing CustomResourceDefinitions: %w", err)
	}
	questions, err := discovery.NewDiscoveryClientForConfig(r.config)
	if err != nil {
		return nil, fmt.Errorf("preparing to ask %s for its kinds: %w", r.Server, err)
	}
	_, lists, err := questions.ServerGroupsAndResources()
	var unknown *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &unknown) {
		return nil, fmt.Errorf("asking %s for its kinds: %w", r.Server, err)
	}
	served := map[schema.GroupResource][]string{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("reading the kinds of %s: %w", r.Server, err)
		}
		for i := range list.APIResources {
			kind := version.WithResource(list.APIResources[i].Name).GroupResource()
			served[kind] = append(served[kind], version.Version)
		}
	}
	out := make([]Definition, 0, len(found.Items))
	for i := range found.Items {
		o := &found.Items[i]
		plural, group, _ := strings.Cut(o.Name, ".")
		if unknown != nil && slices.ContainsFunc(slices.Collect(maps.Keys(unknown.Groups)), func(v schema.GroupVersion) bool { return v.Group == group }) {
			return nil, fmt.Errorf("asking %s for its kinds: %w", r.Server, unknown)
		}
		versions := served[schema.GroupResource{Group: group, Resource: plural}]
		slices.Sort(versions)
		out = append(out, Definition{Name: o.Name, Labels: o.Labels, Served: versions})
	}
	slices.SortFunc(out, func(a, b Definition) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}
