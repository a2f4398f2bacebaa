package kube

import (
	"context"
	"fmt"
	"slices"

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
