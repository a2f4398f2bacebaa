package install

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

const (
	// An emulated API server is busy enough with booting.
	addonPoll = 5 * time.Second
	// oneQuestion bounds each: a machine that restarts its network never answers some of them.
	oneQuestion = time.Minute
	// lastAddon is what the script of a legacy master makes last, before it restarts the kubelet.
	lastAddonNamespace, lastAddon = "giantswarm", "default-deny-all"
)

// WaitAddons waits until the script that makes a legacy master's add-ons has ended. It ends with a restart of the master's kubelet, minutes
// after the operator calls the cluster created, and a proof that begins before finds it. config leads to the workload cluster.
func WaitAddons(ctx context.Context, config *rest.Config, c clock.WithTicker, say func(format string, args ...any)) error {
	config = rest.CopyConfig(config)
	config.Timeout, config.WarningHandler = oneQuestion, rest.NoWarnings{}
	workload, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client of the workload cluster: %w", err)
	}
	tick := c.NewTicker(addonPoll)
	defer tick.Stop()
	start, last := c.Now(), ""
	for {
		err := addonsMade(ctx, workload)
		if err == nil {
			say("%6s  the add-ons are made", c.Since(start).Round(time.Second))
			return nil
		}
		if err.Error() != last && ctx.Err() == nil {
			last = err.Error()
			say("%6s  %s", c.Since(start).Round(time.Second), last)
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return fmt.Errorf("waiting for the add-ons (%s): %w", last, ctx.Err())
		}
	}
}

// addonsMade says what is missing: the last add-on, a kubelet that started after it was made, or a Node that is Ready since.
func addonsMade(ctx context.Context, workload kubernetes.Interface) error {
	policies, err := workload.NetworkingV1().NetworkPolicies(lastAddonNamespace).List(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + lastAddon, ResourceVersion: "0",
	})
	switch {
	case err != nil:
		return errors.New("the API server does not answer yet")
	case len(policies.Items) == 0:
		return errors.New("the last add-on is not made yet")
	}
	masters, err := workload.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "role=master", ResourceVersion: "0"})
	switch {
	case err != nil:
		return fmt.Errorf("listing masters: %w", err)
	case len(masters.Items) == 0:
		return errors.New("no master has registered yet")
	}
	for i := range masters.Items {
		n := &masters.Items[i]
		metrics, err := workload.CoreV1().RESTClient().Get().Resource("nodes").Name(n.Name).SubResource("proxy").Suffix("metrics").DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("the kubelet of %s does not answer yet", n.Name)
		}
		started, err := proof.ProcessStart(metrics)
		switch {
		case err != nil:
			return fmt.Errorf("asking the kubelet of %s: %w", n.Name, err)
		case started.Before(policies.Items[0].CreationTimestamp.Time):
			return fmt.Errorf("the kubelet of %s was not restarted after the last add-on yet", n.Name)
		case !isReady(n):
			return fmt.Errorf("node %s is not Ready yet", n.Name)
		}
	}
	return nil
}

func isReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
