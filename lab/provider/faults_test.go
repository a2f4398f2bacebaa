package provider

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/kvmmachine"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/reaper"
)

// lifetime ends a life that hangs.
const lifetime = 2 * time.Minute

// theFaultLab is a management cluster without a controller of its own: the one of theMachineLab would finish what a killed one has begun.
var theFaultLab = sync.OnceValues(func() (*machineLab, error) { return startManagement(context.Background()) })

func needFaultLab(t *testing.T) *machineLab {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a cluster, and there is none with -short")
	}
	lab, err := theFaultLab()
	require.NoError(t, err)
	return lab
}

// life is one machine from its creation to its end. Its test plays everybody whom the controller meets: Cluster API, scheduler and kubelets, and the Deployment that
// starts the controller again.
type life struct {
	*demo

	name string
	// early asks for the deletion as soon as the first controller is dead, whatever there is by then.
	early bool
	// first kills the first controller; those that follow live.
	first *reaper.Reaper
	// between is a fault between the controllers and the API server.
	between func(http.RoundTripper) http.RoundTripper

	// made counts the pods that the API server made for controllers, also when it could not tell them.
	made atomic.Int64
	// starts counts controllers.
	starts int
	ended  <-chan error
}

// newLife makes a cluster with one control plane machine that has everything a machine can have.
func (l *machineLab) newLife(t *testing.T) *life {
	t.Helper()
	x := &life{demo: l.newDemo(t), name: "m", first: &reaper.Reaper{Count: lasting}}
	key := x.machine()
	// What the launcher and the guest's agent will have said by the time anybody runs them.
	l.logs.say(key, &contract.Report{Kind: contract.ReportStarted, Time: time.Now(), Address: "10.100.1.7"})
	l.logs.say(key, &contract.Report{Kind: contract.ReportGuest, Time: time.Now(), Guest: &contract.Guest{Bootstrap: contract.BootstrapSucceeded}})
	x.newMachine(t, x.name, asControlPlane, withClaim)
	return x
}

// nameless is a write of this life as one of any life.
func (x *life) nameless(write string) string { return strings.ReplaceAll(write, x.namespace, "*") }

// lasting tells a write to an object from events.
func lasting(request *http.Request) bool { return !strings.Contains(request.URL.Path, "/events") }

func (x *life) machine() client.ObjectKey {
	return client.ObjectKey{Namespace: x.namespace, Name: x.name}
}

// live plays everybody until nothing is left of the machine and its cluster. Whoever controls it ends with the test.
func (x *life) live(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lifetime)
	defer cancel()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var last error
	for {
		err := x.keepRunning(ctx, t)
		if err == nil {
			err = x.step(ctx, t)
		}
		if err == nil {
			return
		}
		if last == nil || ctx.Err() == nil {
			last = err // That time is up would tell less.
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			require.NoError(t, last, "what the life still waits for")
		}
	}
}

// keepRunning starts what has ended, as the kubelet of a management cluster would: the API server, and the controller. A deletion that is asked for while there is no controller comes before the next one.
func (x *life) keepRunning(ctx context.Context, t *testing.T) error {
	t.Helper()
	for _, c := range x.management.Components() {
		if c.Name == builder.APIServer && c.State == mc.StateEnded {
			require.NoError(t, x.management.StartComponent(ctx, builder.APIServer))
		}
	}
	select {
	case err := <-x.ended:
		x.ended = nil
		t.Logf("controller %d ended: %v", x.starts, err)
	default:
	}
	if x.ended != nil {
		return nil
	}
	if x.starts > 0 && x.early {
		if err := x.delete(ctx); err != nil {
			return err
		}
	}
	return x.startNext(t.Context())
}

// startNext starts a controller, the first of which the reaper has in hand.
func (x *life) startNext(ctx context.Context) error {
	ctx, kill := context.WithCancel(ctx)
	r := &reaper.Reaper{Count: lasting}
	if x.starts == 0 {
		r = x.first
	}
	x.starts++ // Also when it is killed before it has begun to work: a reaper kills once.
	r.Kill = kill
	config := x.management.Config()
	config.Wrap(x.count)
	if x.between != nil {
		config.Wrap(x.between)
	}
	config.Wrap(r.Wrap)
	process := *x.machineLab
	process.hooks = &hooks{}
	ended, err := process.startController(ctx, config, x.namespace, func(*kvmmachine.Reconciler) {})
	if err != nil {
		kill()
		return err
	}
	x.ended = ended
	return nil
}

// count looks at what the API server answers, whether or not the controller hears of it.
func (x *life) count(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err == nil && response.StatusCode == http.StatusCreated && request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/pods") {
			x.made.Add(1)
		}
		return response, err
	})
}

// step does what is to be done by others at this moment, and returns nil when the life is over.
func (x *life) step(ctx context.Context, t *testing.T) error {
	t.Helper()
	m := &infrav1.KVMMachine{}
	err := x.Get(ctx, x.machine(), m)
	switch {
	case apierrors.IsNotFound(err):
		return x.cleanUp(ctx, t)
	case err != nil:
		return err
	case m.DeletionTimestamp == nil && meta.IsStatusConditionTrue(m.Status.Conditions, clusterv1.ReadyCondition):
		return errors.Join(x.delete(ctx), errNotYet)
	}
	return errors.Join(x.host(ctx), fmt.Errorf("%w: %v, finalizers %v", errNotYet, m.Status.Conditions, m.Finalizers))
}

var errNotYet = errors.New("the machine is there")

// delete asks for the machine's end, as Cluster API would.
func (x *life) delete(ctx context.Context) error {
	return client.IgnoreNotFound(x.Delete(ctx, &infrav1.KVMMachine{ObjectMeta: metav1.ObjectMeta{Namespace: x.namespace, Name: x.name}}))
}

// host plays scheduler and kubelet for the machine's pod.
func (x *life) host(ctx context.Context) error {
	pod := &corev1.Pod{}
	err := x.Get(ctx, x.machine(), pod)
	switch {
	case err != nil:
		return client.IgnoreNotFound(err)
	case pod.DeletionTimestamp != nil:
		return client.IgnoreNotFound(x.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID}))
	case pod.Spec.NodeName == "":
		return x.SubResource("binding").Create(ctx, pod, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: "host-1"},
		})
	case len(pod.Status.ContainerStatuses) > 0:
		return nil
	}
	status := running("1")
	status.Name, status.Image, status.ImageID = contract.Container, "vm-launcher:test", "test"
	pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodRunning, []corev1.ContainerStatus{status}
	return x.Status().Update(ctx, pod)
}

// cleanUp looks whether the machine took along what was its own, and then ends the cluster. The claim is protected for a moment after its deletion; the garbage collector, which would hide what was
// forgotten, lets a pod go only when its kubelet does.
func (x *life) cleanUp(ctx context.Context, t *testing.T) error {
	t.Helper()
	pods, claims, budgets := &corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &policyv1.PodDisruptionBudgetList{}
	for _, list := range []client.ObjectList{pods, claims, budgets} {
		if err := x.List(ctx, list, client.InNamespace(x.namespace)); err != nil {
			return err
		}
	}
	require.Empty(t, pods.Items, "the machine is gone, and its pod is not")
	for i := range claims.Items {
		require.NotNil(t, claims.Items[i].DeletionTimestamp, "the machine is gone, and nobody has deleted its claim")
	}
	for _, owner := range []client.Object{&clusterv1.Machine{}, &infrav1.KVMCluster{}, &clusterv1.Cluster{}} {
		if err := x.DeleteAllOf(ctx, owner, client.InNamespace(x.namespace)); err != nil {
			return err
		}
	}
	if len(claims.Items)+len(budgets.Items) > 0 {
		return fmt.Errorf("%d claims and %d budgets are left", len(claims.Items), len(budgets.Items))
	}
	return nil
}

// TestAControllerKilledAtAnyWrite is followed by one that goes on where it stopped, whatever the killed one knew of its last write, and also when the machine is no longer wanted by then.
func TestAControllerKilledAtAnyWrite(t *testing.T) {
	t.Parallel()
	lab := needFaultLab(t)
	whole := lab.newLife(t)
	whole.live(t)
	require.Equal(t, int64(1), whole.made.Load())
	require.Equal(t, 1, whole.starts)
	writes := whole.first.Seen()
	t.Logf("a life takes %d writes: %v", len(writes), writes)

	ways := []struct {
		name           string
		instead, early bool
	}{
		{name: "its answer is lost"},
		{name: "it never arrives", instead: true},
		{name: "its answer is lost and the machine is deleted", early: true},
	}
	// Each write is told by what it is and by how often that was before: conflicts with others make the numbers of all writes shift from life to life.
	times := map[string]int{}
	for _, write := range writes {
		what := whole.nameless(write)
		times[what]++
		nth := times[what]
		for _, how := range ways {
			t.Run(fmt.Sprintf("%s for the %d. time, %s", strings.ReplaceAll(what, "/", " "), nth, how.name), func(t *testing.T) {
				t.Parallel()
				x := lab.newLife(t)
				x.first.After, x.first.Instead, x.early = nth, how.instead, how.early
				x.first.Count = func(r *http.Request) bool { return lasting(r) && x.nameless(r.Method+" "+r.URL.Path) == what }
				x.live(t)
				switch {
				case nth == 1:
					assert.True(t, x.first.Dead(), "every life has this write")
				case !x.first.Dead():
					t.Log("this life did without it, so nobody was killed")
				}
				if !how.early || x.made.Load() > 0 {
					assert.Equal(t, int64(1), x.made.Load(), "one machine, one pod")
				}
			})
		}
	}
}

// crash is the end of the API server at a controller's write.
type crash struct {
	management       *mc.Cluster
	method, resource string
	// arrives lets the server have the write before it dies, so that only the answer is missing.
	arrives bool

	happened atomic.Bool
}

// errUnanswered is what is left of a request whose server has died.
var errUnanswered = errors.New("the server died before it answered")

func (c *crash) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		due := !kube.Harmless(request) && request.Method == c.method && strings.HasSuffix(request.URL.Path, c.resource)
		if !due || !c.happened.CompareAndSwap(false, true) {
			return next.RoundTrip(request)
		}
		if c.arrives {
			response, err := next.RoundTrip(request)
			if err != nil {
				return nil, err
			}
			_ = response.Body.Close()
		}
		if err := c.management.KillComponent(context.WithoutCancel(request.Context()), builder.APIServer); err != nil {
			return nil, err
		}
		return nil, errUnanswered
	})
}

// TestTheAPIServerRestarts under a controller that is just writing: it has the pod and cannot say so, or has not heard that the machine's claim is to go. Whoever else asked that server would wait, so
// this runs alone.
func TestTheAPIServerRestarts(t *testing.T) {
	lab := needFaultLab(t)
	for name, c := range map[string]*crash{
		"and has made the pod":           {method: http.MethodPost, resource: "/pods", arrives: true},
		"and has not heard of the claim": {method: http.MethodDelete, resource: "/persistentvolumeclaims/m-etcd"},
	} {
		t.Run(name, func(t *testing.T) {
			x := lab.newLife(t)
			c.management = x.management
			x.between = c.wrap
			x.live(t)
			assert.True(t, c.happened.Load(), "the server has to die at %s %s", c.method, c.resource)
			assert.Equal(t, int64(1), x.made.Load(), "one machine, one pod")
			t.Logf("%d controllers", x.starts)
		})
	}
}
