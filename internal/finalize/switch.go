package finalize

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// SwitchIngress lets the provider's own Ingress lead to the API. As a rule the two are there together for a moment, and the older one, the legacy one, has the
// name until it goes, so that nobody asks in vain. Where the management cluster refuses a second Ingress of the same name, as the admission of
// ingress-nginx does, the legacy one goes first, and the new one comes at once.
func (f *Finalizer) SwitchIngress(ctx context.Context) error {
	l, err := f.must(ctx)
	if err != nil {
		return err
	}
	ingress, err := l.field("ingress")
	if err != nil {
		return err
	}
	together, err := f.mayHaveBoth(ctx, ingress)
	if err != nil {
		return err
	}
	own := infrav1.APIServiceName(f.Picture.ID)
	wanted := map[string]any{"ingress": ingress}
	ask := func() error {
		if ingress == nil {
			return nil
		}
		return f.wish(ctx, wanted)
	}
	put := func() error {
		if ingress == nil {
			return nil
		}
		if err := f.made(ctx, ingressKind(), own, wanted); err != nil {
			return err
		}
		return f.awaitEndpoint(ctx)
	}
	take := func() error { return f.remove(ctx, l.of(plan.StageIngress)) }
	turns := []func() error{put, take}
	if !together {
		f.note("the management cluster refuses a second Ingress for the API's name: the legacy one goes first, and for a moment nobody leads to the API")
		turns = []func() error{ask, take, put}
	}
	for _, turn := range turns {
		if err := turn(); err != nil {
			return err
		}
	}
	return f.reach(ctx)
}

// mayHaveBoth asks whether the management cluster takes a second Ingress for the hosts of the legacy one, by a dry run: admission has its say in it.
func (f *Finalizer) mayHaveBoth(ctx context.Context, wanted any) (bool, error) {
	spec, ok := wanted.(map[string]any)
	if !ok {
		return true, nil
	}
	hosts, _, err := unstructured.NestedStringSlice(spec, "hosts")
	if err != nil {
		return false, fmt.Errorf("reading the hosts of KVMCluster %s: %w", f.Picture.ID, err)
	}
	own := infrav1.APIServiceName(f.Picture.ID)
	there, err := adopt.List(ctx, f.Management.Client, ingressKind(), f.Result.Namespace)
	if err != nil || there[own] != nil {
		return true, err
	}
	if len(hosts) == 0 {
		return true, nil
	}
	_, err = f.DryRun.DryRunApply(ctx, f.ingressFor(spec, hosts))
	if err == nil {
		return true, nil
	}
	if kube.Transient(err) || !strings.Contains(err.Error(), "denied") {
		return false, err // Not the refusal of a webhook or a policy.
	}
	// Is it the name, or would it refuse any Ingress like this? Then the provider's would be refused as well, and the legacy one has to stay.
	others := make([]string, 0, len(hosts))
	for _, host := range hosts {
		others = append(others, probeLabel+"."+host)
	}
	if _, other := f.DryRun.DryRunApply(ctx, f.ingressFor(spec, others)); other != nil {
		return false, fmt.Errorf("the provider's Ingress would be refused, so the legacy one stays: %w", err)
	}
	f.note("a second Ingress for the API's name was refused: %s", err)
	return false, nil
}

// probeLabel makes a host of one that nobody has.
const probeLabel = "migration-probe"

// ingressFor is an Ingress like the provider's, for some hosts.
func (f *Finalizer) ingressFor(spec map[string]any, hosts []string) *unstructured.Unstructured {
	own := infrav1.APIServiceName(f.Picture.ID)
	rules, names := make([]any, 0, len(hosts)), make([]any, 0, len(hosts))
	for _, host := range hosts {
		names = append(names, host)
		rules = append(rules, map[string]any{"host": host, "http": map[string]any{"paths": []any{map[string]any{
			"path": "/", "pathType": "Prefix", "backend": map[string]any{"service": map[string]any{"name": own, "port": map[string]any{"name": "api"}}},
		}}}})
	}
	content := map[string]any{"rules": rules, "tls": []any{map[string]any{"hosts": names}}}
	if class, ok := spec["className"].(string); ok && class != "" {
		content["ingressClassName"] = class
	}
	tried := &unstructured.Unstructured{Object: map[string]any{"spec": content}}
	tried.SetGroupVersionKind(ingressKind())
	tried.SetNamespace(f.Result.Namespace)
	tried.SetName(own)
	if annotations, ok := spec["annotations"].(map[string]any); ok {
		texts := map[string]string{}
		for name, value := range annotations {
			texts[name] = fmt.Sprint(value)
		}
		tried.SetAnnotations(texts)
	}
	return tried
}

// wish writes what the provider is to make, and waits until it has looked at it, whatever it says of it: one that is away or paused would put nothing in the place of what is to go. Where it
// cannot have it yet it tries again by itself, so that a run which is killed in between leaves nobody without.
func (f *Finalizer) wish(ctx context.Context, fields map[string]any) error {
	if _, err := f.set(ctx, fields); err != nil {
		return err
	}
	return f.awaitLook(ctx)
}

// made waits until the provider has made an object of its own. One that it could not make before it is woken for: its next try by itself may be far away.
func (f *Finalizer) made(ctx context.Context, kind schema.GroupVersionKind, name string, fields map[string]any) error {
	there, err := adopt.List(ctx, f.Management.Client, kind, f.Result.Namespace)
	if err != nil {
		return err
	}
	wrote, err := f.set(ctx, fields)
	if err == nil && !wrote && there[name] == nil {
		err = f.wake(ctx)
	}
	if err != nil {
		return err
	}
	return f.awaitOwn(ctx, kind, name)
}

// SwitchServices lets the provider's own Service publish the workers' ports. Two Services cannot have the same node port, so the legacy one goes and
// the provider's comes at once; whether it would be taken is asked before. The legacy Endpoints are not kept any longer: nobody uses them.
func (f *Finalizer) SwitchServices(ctx context.Context) error {
	l, err := f.must(ctx)
	if err != nil {
		return err
	}
	ports, err := l.field("workerPorts")
	if err != nil {
		return err
	}
	legacy, whole, err := f.published(ctx, l.of(plan.StageService))
	if err != nil {
		return err
	}
	if legacy {
		if err := f.mayPublish(ctx, ports); err != nil {
			return err
		}
	}
	wanted := map[string]any{"endpoints": nil}
	if ports != nil {
		wanted["workerPorts"] = ports
	}
	if err := f.wish(ctx, wanted); err != nil {
		return err
	}
	if err := f.unpublish(ctx, l.of(plan.StageService), ports, whole); err != nil {
		return err
	}
	if err := f.awaitEndpoint(ctx); err != nil {
		return err
	}
	return f.reach(ctx)
}

// unpublish removes the legacy Services, and waits for the provider's where ports are published. When they go is told before: a run that goes on after a crash finds them gone, and cannot
// know since when.
func (f *Finalizer) unpublish(ctx context.Context, services []plan.Removal, ports any, whole bool) error {
	if ports == nil {
		return f.remove(ctx, services)
	}
	if f.Unpublishing != nil {
		if err := f.Unpublishing(ctx, whole); err != nil {
			return err
		}
	}
	if err := f.remove(ctx, services); err != nil {
		return err
	}
	if err := f.made(ctx, serviceKind(), infrav1.WorkersServiceName(f.Picture.ID), map[string]any{"workerPorts": ports}); err != nil {
		return err
	}
	if f.Published != nil {
		f.Published()
	}
	return nil
}

// published tells whether some of the legacy Services are there, and whether all of them are.
func (f *Finalizer) published(ctx context.Context, services []plan.Removal) (some, whole bool, err error) {
	whole = true
	for _, r := range services {
		o, err := f.live(ctx, r.Object)
		if err != nil {
			return false, false, err
		}
		some, whole = some || o != nil, whole && o != nil
	}
	return some, whole, nil
}

// mayPublish asks by a dry run whether the management cluster would take the provider's Service: without its node ports, which the legacy one still has. A quota or a
// policy that refuses it would leave the workers' ports to nobody.
func (f *Finalizer) mayPublish(ctx context.Context, published any) error {
	ports, ok := published.([]any)
	if !ok || len(ports) == 0 {
		return nil
	}
	name := infrav1.WorkersServiceName(f.Picture.ID)
	there, err := adopt.List(ctx, f.Management.Client, serviceKind(), f.Result.Namespace)
	if err != nil || there[name] != nil {
		return err
	}
	tried := &unstructured.Unstructured{Object: map[string]any{}}
	tried.SetGroupVersionKind(serviceKind())
	tried.SetNamespace(f.Result.Namespace)
	tried.SetName(name)
	free := make([]any, 0, len(ports))
	for _, p := range ports {
		if port, ok := p.(map[string]any); ok {
			free = append(free, map[string]any{"name": port["name"], "port": port["port"], "protocol": string(corev1.ProtocolTCP)})
		}
	}
	tried.Object["spec"] = map[string]any{"type": string(corev1.ServiceTypeNodePort), "ports": free}
	if _, err := f.DryRun.DryRunApply(ctx, tried); err != nil {
		return fmt.Errorf("the provider's Service %s/%s would be refused, so the legacy ones stay: %w", f.Result.Namespace, name, err)
	}
	return nil
}

// VerifySwitched looks once more at the API, and that the legacy way to it is gone.
func (f *Finalizer) VerifySwitched(ctx context.Context) error {
	l, err := f.must(ctx)
	if err != nil {
		return err
	}
	for _, stage := range []plan.Stage{plan.StageIngress, plan.StageService} {
		if err := f.verifyGone(ctx, l.of(stage)); err != nil {
			return err
		}
	}
	return f.reach(ctx)
}
