package forecast

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/core/reconcilers/machinedeployment/mdutil"
	"sigs.k8s.io/cluster-api/util/collections"
)

// workers forecasts every MachineDeployment with its MachineSets, and every MachineSet without one.
func (l *look) workers(ctx context.Context) error {
	deployments, sets := &clusterv1.MachineDeploymentList{}, &clusterv1.MachineSetList{}
	if err := l.list(ctx, deployments); err != nil {
		return err
	}
	if err := l.list(ctx, sets); err != nil {
		return err
	}
	slices.SortFunc(deployments.Items, func(a, b clusterv1.MachineDeployment) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(sets.Items, func(a, b clusterv1.MachineSet) int { return cmp.Compare(a.Name, b.Name) })
	for i := range deployments.Items {
		d := &deployments.Items[i]
		l.controller = "MachineDeployment/" + d.Name
		var own []*clusterv1.MachineSet
		for j := range sets.Items {
			if owner := metav1.GetControllerOf(&sets.Items[j]); owner != nil && owner.UID == d.UID {
				own = append(own, &sets.Items[j])
			}
		}
		if err := l.deployment(d, own); err != nil {
			return fmt.Errorf("forecasting %s: %w", l.controller, err)
		}
	}
	for i := range sets.Items {
		s := &sets.Items[i]
		if metav1.GetControllerOf(s) != nil {
			continue
		}
		l.controller = "MachineSet/" + s.Name
		machines, err := l.machinesOf(s)
		if err != nil {
			return fmt.Errorf("forecasting %s: %w", l.controller, err)
		}
		l.resize(machines, int(ptr.Deref(s.Spec.Replicas, 1)))
	}
	return nil
}

// deployment tells what becomes of a MachineDeployment's Machines: those of the current MachineSet stay, the others are replaced, and then
// there are as many as wanted.
func (l *look) deployment(d *clusterv1.MachineDeployment, sets []*clusterv1.MachineSet) error {
	if !d.DeletionTimestamp.IsZero() {
		for _, m := range sorted(l.machines) {
			if slices.ContainsFunc(sets, func(s *clusterv1.MachineSet) bool { return metav1.IsControlledBy(m, s) }) {
				l.will(DeleteMachine, machineRef(m), "the MachineDeployment is being deleted")
			}
		}
		return nil
	}
	current, old, results, reason := mdutil.FindNewAndOldMachineSets(d, sets, metav1.NewTime(l.Now))
	kept := collections.Machines{}
	if current != nil {
		var err error
		if kept, err = l.machinesOf(current); err != nil {
			return err
		}
	}
	want, replaced := int(ptr.Deref(d.Spec.Replicas, 1)), 0
	for _, s := range old {
		outdated, err := l.machinesOf(s)
		if err != nil {
			return err
		}
		why := cmp.Or(strings.Join(results[s.Name].ConditionMessages, "; "), reason, "it belongs to an earlier MachineSet")
		for _, m := range sorted(outdated) {
			switch {
			case len(kept)+replaced >= want:
				l.will(DeleteMachine, machineRef(m), "%s, and there are enough", why)
				continue
			case d.Spec.Rollout.Strategy.Type == clusterv1.OnDeleteMachineDeploymentStrategyType:
				l.waits("until somebody deletes %s: %s", machineRef(m), why)
			default:
				l.will(ReplaceMachine, machineRef(m), "%s", why)
			}
			replaced++
		}
	}
	l.resize(kept, want-replaced)
	return nil
}

// machinesOf are the Machines that a MachineSet controls, or would after it has adopted what its selector finds.
func (l *look) machinesOf(s *clusterv1.MachineSet) (collections.Machines, error) {
	selector, err := metav1.LabelSelectorAsSelector(&s.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("reading the selector of MachineSet %s: %w", s.Name, err)
	}
	own := collections.Machines{}
	for _, m := range sorted(l.machines) {
		switch {
		case !m.DeletionTimestamp.IsZero() || !selector.Matches(labels.Set(m.Labels)):
		case metav1.IsControlledBy(m, s):
			own.Insert(m)
		case metav1.GetControllerOf(m) == nil:
			l.will(AdoptMachine, machineRef(m), "the selector of MachineSet/%s finds it, and nobody controls it", s.Name)
			own.Insert(m)
		}
	}
	return own, nil
}

// resize tells what is made or deleted until there are as many Machines as wanted. Unhealthy ones are replaced.
func (l *look) resize(machines collections.Machines, want int) {
	for _, m := range sorted(machines.Filter(collections.IsUnhealthyAndOwnerRemediated)) {
		l.will(ReplaceMachine, machineRef(m), "a MachineHealthCheck or a person asks for its remediation")
	}
	have := len(machines)
	for n := have; n < want; n++ {
		l.will(CreateMachine, l.controller, "it has %d of %d", n, want)
	}
	if have <= want {
		return
	}
	// Those that are marked go first; which of the others, the MachineSet's order says, and that may be chance.
	marked := sorted(machines.Filter(collections.HasAnnotationKey(clusterv1.DeleteMachineAnnotation)))
	for i := range have - want {
		if i < len(marked) {
			l.will(DeleteMachine, machineRef(marked[i]), "it has %d of %d, and this one is marked", have, want)
			continue
		}
		l.will(DeleteMachine, l.controller, "it has %d of %d; one of its Machines", have, want)
	}
}
