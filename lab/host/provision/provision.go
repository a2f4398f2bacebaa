package provision

import (
	"context"
	"fmt"
	"os"
	"path"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
)

const (
	// ClassName is the StorageClass that hosts make if there is none.
	ClassName = "lab-local"
	// Name of the provisioner.
	Name = "lab.cluster-api-provider-kvm/local"
	// Dir is where volumes are on a host.
	Dir = "/var/lib/lab-local"

	selectedNode      = "volume.kubernetes.io/selected-node"
	provisionedBy     = "pv.kubernetes.io/provisioned-by"
	hostnameLabel     = corev1.LabelHostname
	resync            = time.Minute
	kindClaim         = "claim"
	kindVolume        = "volume"
	namePrefix        = "pvc-"
	eventProvisioned  = "ProvisioningSucceeded"
	eventFailed       = "ProvisioningFailed"
	volumeFailedEvent = "VolumeFailedDelete"
)

// Options of a provisioner.
type Options struct {
	Node   string
	Client kubernetes.Interface
	// On says where a path of the host is on the machine.
	On     func(path string) string
	Events record.EventRecorder
	Log    *logrus.Entry
}

type provisioner struct {
	Options
	claims  cache.SharedIndexInformer
	volumes cache.SharedIndexInformer
	queue   workqueue.TypedRateLimitingInterface[item]
}

type item struct{ kind, key string }

// Run makes the StorageClass and serves claims until ctx ends.
func Run(ctx context.Context, opts Options) error {
	if err := ensureClass(ctx, opts.Client); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(opts.Client, resync)
	p := &provisioner{
		Options: opts,
		claims:  factory.Core().V1().PersistentVolumeClaims().Informer(),
		volumes: factory.Core().V1().PersistentVolumes().Informer(),
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[item]()),
	}
	for kind, informer := range map[string]cache.SharedIndexInformer{kindClaim: p.claims, kindVolume: p.volumes} {
		if _, err := informer.AddEventHandler(p.enqueue(kind)); err != nil {
			return fmt.Errorf("following %ss: %w", kind, err)
		}
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	go func() {
		<-ctx.Done()
		p.queue.ShutDown()
	}()
	if !cache.WaitForCacheSync(ctx.Done(), p.claims.HasSynced, p.volumes.HasSynced) {
		return nil
	}
	wait.UntilWithContext(ctx, p.work, time.Second)
	return nil
}

func ensureClass(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: ClassName},
		Provisioner:       Name,
		ReclaimPolicy:     ptr.To(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making StorageClass %s: %w", ClassName, err)
	}
	return nil
}

func (p *provisioner) enqueue(kind string) cache.ResourceEventHandler {
	add := func(obj any) {
		if key, err := cache.MetaNamespaceKeyFunc(obj); err == nil {
			p.queue.Add(item{kind, key})
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }}
}

func (p *provisioner) work(ctx context.Context) {
	for {
		next, shutdown := p.queue.Get()
		if shutdown {
			return
		}
		if err := p.reconcile(ctx, next); err != nil {
			p.Log.WithError(err).WithField("key", next.key).Warn("storage")
			p.queue.AddRateLimited(next)
		} else {
			p.queue.Forget(next)
		}
		p.queue.Done(next)
	}
}

func (p *provisioner) reconcile(ctx context.Context, i item) error {
	informer := p.claims
	if i.kind == kindVolume {
		informer = p.volumes
	}
	obj, exists, err := informer.GetStore().GetByKey(i.key)
	if err != nil || !exists {
		return err
	}
	switch o := obj.(type) {
	case *corev1.PersistentVolumeClaim:
		return p.provision(ctx, o)
	case *corev1.PersistentVolume:
		return p.reclaim(ctx, o)
	default:
		return nil
	}
}

// provision makes directory and volume for a claim whose pod was scheduled to this host. The controller-manager binds them.
func (p *provisioner) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil || claim.Annotations[selectedNode] != p.Node {
		return nil
	}
	name := ptr.Deref(claim.Spec.StorageClassName, "")
	if name == "" {
		return nil
	}
	class, err := p.Client.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || (err == nil && class.Provisioner != Name) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading StorageClass %s: %w", name, err)
	}
	if ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) != corev1.PersistentVolumeFilesystem {
		p.Events.Event(claim, corev1.EventTypeWarning, eventFailed, "the lab's hosts have no block volumes")
		return nil
	}
	volume := p.volumeFor(claim, class)
	if err := os.MkdirAll(p.On(volume.Spec.Local.Path), 0o777); err != nil { //nolint:gosec // Any user may write to a volume.
		return fmt.Errorf("making the directory of volume %s: %w", volume.Name, err)
	}
	if _, err := p.Client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		p.Events.Event(claim, corev1.EventTypeWarning, eventFailed, err.Error())
		return fmt.Errorf("making volume %s: %w", volume.Name, err)
	}
	p.Events.Event(claim, corev1.EventTypeNormal, eventProvisioned, "Successfully provisioned volume "+volume.Name)
	return nil
}

func (p *provisioner) volumeFor(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *corev1.PersistentVolume {
	name := namePrefix + string(claim.UID)
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: Name}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes: claim.Spec.AccessModes,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeReclaimPolicy: ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			StorageClassName:              class.Name,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: path.Join(Dir, name)},
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: hostnameLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{p.Node},
				}},
			}}}},
		},
	}
}

// reclaim removes a volume of this host whose claim is gone.
func (p *provisioner) reclaim(ctx context.Context, v *corev1.PersistentVolume) error {
	if v.Annotations[provisionedBy] != Name || v.Status.Phase != corev1.VolumeReleased || v.Spec.Local == nil || !p.here(v) ||
		v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || v.DeletionTimestamp != nil {
		return nil
	}
	if err := os.RemoveAll(p.On(v.Spec.Local.Path)); err != nil {
		p.Events.Event(v, corev1.EventTypeWarning, volumeFailedEvent, err.Error())
		return fmt.Errorf("removing the directory of volume %s: %w", v.Name, err)
	}
	err := p.Client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(v.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting volume %s: %w", v.Name, err)
	}
	return nil
}

func (p *provisioner) here(v *corev1.PersistentVolume) bool {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return false
	}
	for _, term := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == hostnameLabel && len(e.Values) == 1 && e.Values[0] == p.Node {
				return true
			}
		}
	}
	return false
}
