package roll

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pack"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

const (
	apiServicesSuffix = "-migration-apiservices"
	apiServicesKey    = "apiservices.json.gz"
	// beforeKey holds the names of what was called like something of kubeadm's before it came.
	beforeKey = "before.json"
	// builtIn is how kube-aggregator marks what an API server makes of its own APIs, once, when it starts (kubernetes v1.22,
	// staging/src/k8s.io/kube-aggregator/pkg/controllers/autoregister).
	builtIn = "kube-aggregator.kubernetes.io/automanaged"
	// maxAPIServices bounds what the copy unpacks to.
	maxAPIServices = 16 << 20
)

func apiServiceKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"}
}

// SaveAPIServices keeps a copy of the workload cluster's APIServices, once. A newer API server deletes the built-in ones that it does not serve any
// more, seconds before it is ready, and the older one makes them again only when it starts (init-join-proof.md 10).
// Beside it, it keeps the names of what is there already that kubeadm would leave: it is somebody else's, and no undo may take it away.
func (c *Roller) SaveAPIServices(ctx context.Context) error {
	kept, err := c.get(ctx, coreKind("ConfigMap"), c.Picture.ID+apiServicesSuffix)
	if err != nil || kept != nil {
		return err
	}
	all, err := adopt.List(ctx, c.Workload.Client, apiServiceKind(), "")
	if err != nil {
		return err
	}
	services := make([]map[string]any, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name].GetLabels()[builtIn] != "onstart" {
			continue // Those of CustomResourceDefinitions come and go with them.
		}
		o := &unstructured.Unstructured{Object: map[string]any{"spec": all[name].Object["spec"]}}
		o.SetGroupVersionKind(apiServiceKind())
		o.SetName(name)
		o.SetLabels(all[name].GetLabels())
		o.SetAnnotations(all[name].GetAnnotations())
		services = append(services, o.Object)
	}
	packed, err := pack.JSON(services)
	if err != nil {
		return fmt.Errorf("keeping the APIServices of cluster %s: %w", c.Picture.ID, err)
	}
	before, err := c.leavings(ctx)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(before))
	for _, o := range before {
		names = append(names, kube.TargetOf(o).String())
	}
	listed, err := json.Marshal(names)
	if err != nil {
		return fmt.Errorf("keeping what is in cluster %s before kubeadm: %w", c.Picture.ID, err)
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"binaryData": map[string]any{apiServicesKey: base64.StdEncoding.EncodeToString(packed)}, "data": map[string]any{beforeKey: string(listed)},
	}}
	o.SetGroupVersionKind(coreKind("ConfigMap"))
	o.SetNamespace(c.Result.Namespace)
	o.SetName(c.Picture.ID + apiServicesSuffix)
	o.SetLabels(map[string]string{translate.LabelCluster: c.Picture.ID})
	_, err = c.Management.Writer.Create(ctx, o)
	return client.IgnoreAlreadyExists(err)
}

// savedAPIServices are those of the copy; nil when there is none.
func (c *Roller) savedAPIServices(ctx context.Context) ([]map[string]any, *unstructured.Unstructured, error) {
	kept, err := c.get(ctx, coreKind("ConfigMap"), c.Picture.ID+apiServicesSuffix)
	if err != nil || kept == nil {
		return nil, nil, err
	}
	var saved []map[string]any
	packed, err := base64.StdEncoding.DecodeString(text(kept, "binaryData", apiServicesKey))
	if err == nil {
		var raw []byte
		if raw, err = pack.Open(packed, maxAPIServices); err == nil {
			err = json.Unmarshal(raw, &saved)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", kube.TargetOf(kept), err)
	}
	return saved, kept, nil
}

// before are the names of what was there before kubeadm came, as they were kept; none where nobody has kept them.
func (c *Roller) before(ctx context.Context) ([]string, error) {
	kept, err := c.get(ctx, coreKind("ConfigMap"), c.Picture.ID+apiServicesSuffix)
	if err != nil || kept == nil {
		return nil, err
	}
	listed := text(kept, "data", beforeKey)
	if listed == "" {
		return nil, nil
	}
	var names []string
	if err := json.Unmarshal([]byte(listed), &names); err != nil {
		return nil, fmt.Errorf("reading %s of %s: %w", beforeKey, kube.TargetOf(kept), err)
	}
	return names, nil
}

// VerifyAPIServicesSaved reads the copy.
func (c *Roller) VerifyAPIServicesSaved(ctx context.Context) error {
	saved, _, err := c.savedAPIServices(ctx)
	if err == nil && len(saved) == 0 {
		err = fmt.Errorf("verifying ConfigMap %s/%s: there is no APIService in it", c.Result.Namespace, c.Picture.ID+apiServicesSuffix)
	}
	return err
}

// RestoreAPIServices makes those again that are missing, and forgets the copy when all are there.
func (c *Roller) RestoreAPIServices(ctx context.Context) error {
	saved, kept, err := c.savedAPIServices(ctx)
	if err != nil || kept == nil {
		return err
	}
	there, err := adopt.List(ctx, c.Workload.Client, apiServiceKind(), "")
	if err != nil {
		return err
	}
	for _, object := range saved {
		o := &unstructured.Unstructured{Object: object}
		if there[o.GetName()] != nil {
			continue
		}
		if _, err := c.Workload.Writer.Create(ctx, o); client.IgnoreAlreadyExists(err) != nil {
			return err
		}
		c.note("%s is there again", kube.TargetOf(o))
	}
	return c.Management.Writer.Delete(ctx, kube.TargetOf(kept), metav1.DeletePropagationBackground)
}

// What the new kubelet needs where pods are admitted by PodSecurityPolicy: without a policy that it may use, its static pods run, but Cluster API does not
// see them (init-join-proof.md 7).
const mirrorPods = "migration-mirror-pods"

func policyKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "policy", Version: "v1beta1", Kind: "PodSecurityPolicy"}
}

// admissionObjects let Nodes use a policy, in kube-system alone: the cluster's own privileged one, or one that is made for it.
func (c *Roller) admissionObjects(ctx context.Context) ([]*unstructured.Unstructured, error) {
	policies, err := adopt.List(ctx, c.Workload.Client, policyKind(), "")
	if meta.IsNoMatchError(err) {
		return nil, nil // An API server without the kind does not admit by it.
	}
	if err != nil {
		return nil, err
	}
	made := func(apiVersion, kind, namespace string, content map[string]any) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: content}
		o.SetAPIVersion(apiVersion)
		o.SetKind(kind)
		o.SetNamespace(namespace)
		o.SetName(mirrorPods)
		o.SetLabels(map[string]string{translate.LabelCluster: c.Picture.ID})
		return o
	}
	var out []*unstructured.Unstructured
	policy := mirrorPods
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		if privileged(policies[name]) && name != mirrorPods {
			policy = name
			break
		}
	}
	if policy == mirrorPods {
		anything := map[string]any{"rule": "RunAsAny"}
		out = append(out, made("policy/v1beta1", "PodSecurityPolicy", "", map[string]any{"spec": map[string]any{
			"privileged": true, "hostNetwork": true, "hostPID": true, "hostIPC": true, "allowPrivilegeEscalation": true,
			"hostPorts": []any{map[string]any{"min": int64(0), "max": int64(65535)}}, "volumes": []any{"*"}, "allowedCapabilities": []any{"*"},
			"seLinux": anything, "runAsUser": anything, "supplementalGroups": anything, "fsGroup": anything,
		}}))
	}
	const rbac = "rbac.authorization.k8s.io"
	return append(out,
		made(rbac+"/v1", "Role", systemNamespace, map[string]any{"rules": []any{map[string]any{
			"apiGroups": []any{"policy"}, "resources": []any{"podsecuritypolicies"}, "resourceNames": []any{policy}, "verbs": []any{"use"},
		}}}),
		made(rbac+"/v1", "RoleBinding", systemNamespace, map[string]any{
			"roleRef":  map[string]any{"apiGroup": rbac, "kind": "Role", "name": mirrorPods},
			"subjects": []any{map[string]any{"apiGroup": rbac, "kind": "Group", "name": "system:nodes"}},
		}),
	), nil
}

// privileged tells of a policy that admits a control plane's static pods.
func privileged(policy *unstructured.Unstructured) bool {
	all, _, err := unstructured.NestedBool(policy.Object, "spec", "privileged")
	network, _, networkErr := unstructured.NestedBool(policy.Object, "spec", "hostNetwork")
	volumes, _, volumesErr := unstructured.NestedStringSlice(policy.Object, "spec", "volumes")
	return err == nil && networkErr == nil && volumesErr == nil && all && network && slices.Contains(volumes, "*")
}

// Admit lets the new machine's static pods be seen.
func (c *Roller) Admit(ctx context.Context) error {
	wanted, err := c.admissionObjects(ctx)
	if err != nil {
		return err
	}
	for _, o := range wanted {
		if err := c.Workload.Writer.Ensure(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// Unadmit takes that back.
func (c *Roller) Unadmit(ctx context.Context) error {
	wanted, err := c.admissionObjects(ctx)
	if err != nil {
		return err
	}
	// A policy of our own is the last to go.
	for _, o := range slices.Backward(wanted) {
		live, err := get(ctx, c.Workload.Client, o.GroupVersionKind(), o.GetNamespace(), o.GetName())
		if err != nil {
			return err
		}
		if live == nil || !c.made(live) {
			continue
		}
		if err := c.Workload.Writer.Delete(ctx, kube.TargetOf(live), metav1.DeletePropagationBackground); err != nil {
			return err
		}
	}
	return nil
}
