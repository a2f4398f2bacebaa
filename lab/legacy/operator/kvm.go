package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
)

// Finalizers of kvm-operator without their prefix, each of them a controller's name.
const (
	kvmFinalizer        = desired.Operator
	deleterFinalizer    = desired.Operator + "-deleter"
	drainerFinalizer    = desired.Operator + "-drainer"
	terminatorFinalizer = desired.Operator + "-unhealthy-nodes-terminator"
)

// Documented delays.
const (
	deleterPeriod = 2 * time.Minute
	// resync is how soon an operator notices what no event tells it.
	resync = 5 * time.Minute
	// notReadyTicks is for how many looks a node has to be unready before its pod goes.
	notReadyTicks = 6
)

// KVM is kvm-operator.
type KVM struct {
	Options

	Installation desired.Installation
	// Workload connects to the API server of a cluster.
	Workload func(ctx context.Context, config *desired.Config) (client.Client, error)

	mu sync.Mutex
	// followed are clusters whose Nodes the process follows. Nothing but its end stops that: neither a pause nor another version.
	followed map[string]*desired.Config
	// notReady counts for how many ticks a Node was not ready.
	notReady map[string]int
}

// Loops returns what the operator does.
func (k *KVM) Loops() []Loop {
	return []Loop{
		{Name: "reconcile", Every: k.scaled(resync), Do: k.Reconcile},
		{Name: "pods", Every: time.Second, Do: k.Pods},
		{Name: "delete nodes", Every: k.scaled(deleterPeriod), Do: k.DeleteNodes},
		{Name: "terminate unhealthy", Every: k.scaled(resync), Do: k.TerminateUnhealthy},
		{Name: "node readiness", Every: k.scaled(resync), Do: k.CopyReadiness},
	}
}

// configs returns the clusters of this version that are not paused.
func (k *KVM) configs(ctx context.Context) ([]unstructured.Unstructured, error) {
	all, err := list(ctx, k.Client, desired.KindKVMConfig, client.MatchingLabels{desired.OperatorVersionLabel: k.Version})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(o unstructured.Unstructured) bool { return paused(&o) }), nil
}

// Reconcile brings the objects of all clusters to what is wanted. Steps for each: finalizers, status, node indexes, then its objects
// in the operator's order.
func (k *KVM) Reconcile(ctx context.Context) error {
	configs, err := k.configs(ctx)
	if err != nil {
		return err
	}
	return each(configs, func(o *unstructured.Unstructured) error {
		if o.GetDeletionTimestamp() != nil {
			return k.tearDown(ctx, o)
		}
		return k.reconcile(ctx, o)
	})
}

func (k *KVM) reconcile(ctx context.Context, o *unstructured.Unstructured) error {
	if err := addFinalizer(ctx, k.Client, o, terminatorFinalizer, kvmFinalizer, deleterFinalizer); err != nil {
		return err
	}
	in, err := k.input(ctx, o)
	if err != nil {
		return err
	}
	workload, workloadErr := k.Workload(ctx, in.Config)
	nodes, nodesErr := workloadNodes(ctx, workload, workloadErr)
	if err := k.writeStatus(ctx, o, in, nodes, nodesErr); err != nil {
		return err
	}
	if err := k.ensureAccess(ctx, in); err != nil {
		return err
	}
	if err := k.deleteUnwantedConfigMaps(ctx, in); err != nil {
		return err
	}
	for _, c := range in.Claims() {
		if _, err := create(ctx, k.Client, c); err != nil {
			return err
		}
	}
	if err := k.syncDeployments(ctx, in, nodes, nodesErr); err != nil {
		return err
	}
	for _, i := range in.Ingresses() {
		if _, err := create(ctx, k.Client, i); err != nil {
			return err
		}
	}
	for _, s := range in.Services() {
		if err := k.ensureService(ctx, s); err != nil {
			return err
		}
	}
	k.follow(in.Config)
	return nil
}

func (k *KVM) follow(config *desired.Config) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.followed == nil {
		k.followed = map[string]*desired.Config{}
	}
	k.followed[config.ID()] = config
}

// input gathers what objects depend on.
func (k *KVM) input(ctx context.Context, o *unstructured.Unstructured) (*desired.Input, error) {
	config, err := desired.Read(o)
	if err != nil {
		return nil, err
	}
	release := kind(desired.KindRelease)
	if err := k.Client.Get(ctx, client.ObjectKey{Name: "v" + config.Labels[desired.ReleaseVersionLabel]}, release); err != nil {
		return nil, fmt.Errorf("looking for the release: %w", err)
	}
	components, err := desired.Components(release)
	if err != nil {
		return nil, err
	}
	in := &desired.Input{Config: config, Components: components, Installation: k.Installation, HostVolumeSizes: map[string]string{}}
	var volumes corev1.PersistentVolumeList
	if err := k.Client.List(ctx, &volumes); err != nil {
		return nil, fmt.Errorf("listing volumes: %w", err)
	}
	for _, v := range volumes.Items {
		if tag := v.Labels["mount-tag"]; tag != "" {
			size := v.Spec.Capacity[corev1.ResourceStorage]
			in.HostVolumeSizes[tag] = size.String()
		}
	}
	return in, nil
}

// ensureAccess makes namespace, account and bindings. The bindings of another version are replaced at once: the role they name goes with
// that version's chart.
func (k *KVM) ensureAccess(ctx context.Context, in *desired.Input) error {
	for _, want := range in.ClusterRoleBindings() {
		have := &rbacv1.ClusterRoleBinding{}
		err := k.Client.Get(ctx, client.ObjectKeyFromObject(want), have)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("looking for a binding: %w", err)
		}
		if err == nil && have.RoleRef != want.RoleRef {
			if err := remove(ctx, k.Client, have); err != nil {
				return err
			}
		}
		if _, err := create(ctx, k.Client, want); err != nil {
			return err
		}
	}
	if _, err := create(ctx, k.Client, in.Namespace()); err != nil {
		return err
	}
	_, err := create(ctx, k.Client, in.ServiceAccount())
	return err
}

func (k *KVM) deleteUnwantedConfigMaps(ctx context.Context, in *desired.Input) error {
	var have corev1.ConfigMapList
	if err := k.Client.List(ctx, &have, client.InNamespace(in.ID()), client.MatchingLabels{desired.ManagedByLabel: desired.Operator}); err != nil {
		return fmt.Errorf("listing bootstrap data: %w", err)
	}
	want := in.ConfigMapNames()
	for i := range have.Items {
		if !slices.Contains(want, have.Items[i].Name) {
			if err := remove(ctx, k.Client, &have.Items[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *KVM) ensureService(ctx context.Context, want *corev1.Service) error {
	have := &corev1.Service{}
	err := k.Client.Get(ctx, client.ObjectKeyFromObject(want), have)
	if apierrors.IsNotFound(err) {
		_, err := create(ctx, k.Client, want)
		return err
	}
	if err != nil {
		return fmt.Errorf("looking for a Service: %w", err)
	}
	const bundle = "giantswarm.io/version-bundle"
	if have.Labels[bundle] == want.Labels[bundle] {
		return nil
	}
	have.Labels, have.Annotations = want.Labels, want.Annotations
	if err := k.Client.Update(ctx, have); err != nil {
		return fmt.Errorf("updating Service %s: %w", client.ObjectKeyFromObject(have), err)
	}
	return nil
}

// tearDown follows a deletion: everything goes, VMs without draining, and with the namespace whatever else is in it. The finalizers stay
// until the namespace is gone.
func (k *KVM) tearDown(ctx context.Context, o *unstructured.Unstructured) error {
	if !hasFinalizer(o, kvmFinalizer) {
		return removeFinalizer(ctx, k.Client, o, deleterFinalizer, terminatorFinalizer)
	}
	in, err := k.input(ctx, o)
	if err != nil {
		return err
	}
	for _, b := range in.ClusterRoleBindings() {
		if err := remove(ctx, k.Client, b); err != nil {
			return err
		}
	}
	if err := k.deleteInside(ctx, in); err != nil {
		return err
	}
	left, err := k.podsLeft(ctx, in.ID())
	if err != nil || left {
		return err
	}
	for _, i := range in.Ingresses() {
		if err := remove(ctx, k.Client, i); err != nil {
			return err
		}
	}
	for _, s := range in.Services() {
		if err := remove(ctx, k.Client, s); err != nil {
			return err
		}
	}
	if err := remove(ctx, k.Client, in.Namespace()); err != nil {
		return err
	}
	err = k.Client.Get(ctx, client.ObjectKey{Name: in.ID()}, &corev1.Namespace{})
	if apierrors.IsNotFound(err) {
		return removeFinalizer(ctx, k.Client, o, kvmFinalizer, deleterFinalizer, terminatorFinalizer)
	}
	if err != nil {
		return fmt.Errorf("looking whether the namespace is gone: %w", err)
	}
	return nil
}

func (k *KVM) deleteInside(ctx context.Context, in *desired.Input) error {
	objects := make([]client.Object, 0, 1+len(in.ConfigMapNames())+len(in.Claims()))
	objects = append(objects, in.ServiceAccount())
	for _, name := range in.ConfigMapNames() {
		objects = append(objects, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: in.ID()}})
	}
	for _, c := range in.Claims() {
		objects = append(objects, c)
	}
	for _, o := range objects {
		if err := remove(ctx, k.Client, o); err != nil {
			return err
		}
	}
	deployments, err := in.Deployments()
	if err != nil {
		return err
	}
	for _, d := range deployments {
		if err := remove(ctx, k.Client, d, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
			return err
		}
	}
	return nil
}

func (k *KVM) podsLeft(ctx context.Context, namespace string) (bool, error) {
	var pods corev1.PodList
	if err := k.Client.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return false, fmt.Errorf("listing pods: %w", err)
	}
	return len(pods.Items) > 0, nil
}

var errNoWorkload = errors.New("the workload cluster does not answer")

// workloadNodes lists the Nodes of a workload cluster. That it cannot be reached is a fact some rules need, not a failure of the loop.
func workloadNodes(ctx context.Context, workload client.Client, err error) ([]corev1.Node, error) {
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoWorkload, err)
	}
	var nodes corev1.NodeList
	if err := workload.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoWorkload, err)
	}
	return nodes.Items, nil
}

// ready returns the status of a Node's condition Ready.
func ready(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}
