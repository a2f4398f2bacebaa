package seed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

// fieldOwner marks what was loaded. It is not the lab's other field owner, so
// that managedFields tell loaded from installed objects.
const fieldOwner = "lab-seed"

const (
	waitPoll  = 25 * time.Millisecond
	waitLimit = time.Minute
)

// Options say how to load. The zero value is right for an API server alone.
type Options struct {
	// Clusters restricts loading to these cluster ids; all when empty.
	Clusters []string
	// ControllerManager says that a controller manager works on the cluster. It
	// must be true exactly if that is so.
	ControllerManager bool
	// SkipServiceAccountTokens leaves out Secrets of that type.
	SkipServiceAccountTokens bool
	// Log receives details; discarded when nil.
	Log logrus.FieldLogger
	// Clock polls; the real clock when nil.
	Clock clock.WithTicker
}

// Result says what was done.
type Result struct {
	Created  int
	Existing int
	Skipped  []Skipped
}

// loader is one run of Load.
type loader struct {
	opts   Options
	client client.Client
	ask    manifest.Asker

	mu     sync.Mutex
	result Result
	// uids maps uids of the export to those of the server.
	uids map[types.UID]types.UID
	// fresh are objects created by this run.
	fresh map[types.UID]bool
}

// Load reads all objects below the directories and loads them. Steps: read,
// choose, create stage by stage with status, then workloads.
func Load(ctx context.Context, config *rest.Config, dirs []string, opts Options) (Result, error) {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.Log == nil {
		quiet := logrus.New()
		quiet.SetOutput(discard{})
		opts.Log = quiet
	}
	objects, err := collect(dirs, opts.Clusters)
	if err != nil {
		return Result{}, err
	}
	objects, skipped := loadable(objects, opts)

	l, err := newLoader(config, opts)
	if err != nil {
		return Result{}, err
	}
	l.result.Skipped = skipped
	err = l.all(ctx, objects)
	return l.result, err
}

// all loads the objects stage by stage. Custom resources go beside the rest: for
// two seconds after a CRD was established the API server holds back every
// creation of its kind, and nothing else has to wait for that.
func (l *loader) all(ctx context.Context, objects []*unstructured.Unstructured) error {
	stages := make([][]*unstructured.Unstructured, workloads+1)
	var custom []*unstructured.Unstructured
	beside := !slices.ContainsFunc(objects, ownedByCustom)
	for _, o := range objects {
		s := stage(o.GetKind(), l.opts.ControllerManager)
		if beside && s > 0 && isCustom(o.GetAPIVersion()) {
			custom = append(custom, o)
			continue
		}
		stages[s] = append(stages[s], o)
	}
	if err := l.simple(ctx, stages[0]); err != nil {
		return err
	}
	var wg sync.WaitGroup
	var customErr error
	wg.Go(func() { customErr = l.simple(ctx, custom) })
	err := l.stages(ctx, stages)
	wg.Wait()
	if err != nil {
		return err
	}
	return customErr
}

func (l *loader) stages(ctx context.Context, stages [][]*unstructured.Unstructured) error {
	for s := 1; s < workloads; s++ {
		start := l.opts.Clock.Now()
		if err := l.simple(ctx, stages[s]); err != nil {
			return err
		}
		l.opts.Log.WithField("stage", s).WithField("objects", len(stages[s])).WithField("took", l.opts.Clock.Since(start)).Debug("stage is loaded")
	}
	if l.opts.ControllerManager {
		return l.bottomUp(ctx, stages[workloads])
	}
	return l.topDown(ctx, stages[workloads])
}

func newLoader(config *rest.Config, opts Options) (*loader, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // Our own limit would make a second's work last a minute.
	config.WarningHandler = rest.NoWarnings{}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making an HTTP client: %w", err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("making a REST mapper: %w", err)
	}
	c, err := client.New(config, client.Options{HTTPClient: httpClient, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return &loader{
		opts: opts, client: c,
		ask:  manifest.Asker{Client: httpClient, URL: config.Host, Clock: opts.Clock},
		uids: map[types.UID]types.UID{}, fresh: map[types.UID]bool{},
	}, nil
}

// simple loads objects that nothing acts on while they are incomplete.
func (l *loader) simple(ctx context.Context, objects []*unstructured.Unstructured) error {
	var crds []*unstructured.Unstructured
	rest := slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		if o.GetKind() == manifest.CRDKind {
			crds = append(crds, strip(o))
			return true
		}
		return false
	})
	for _, crd := range crds {
		unstructured.RemoveNestedField(crd.Object, "status")
	}
	if err := l.loadCRDs(ctx, crds); err != nil {
		return err
	}
	return manifest.Each(ctx, rest, func(ctx context.Context, o *unstructured.Unstructured) error {
		switch kind := o.GetKind(); {
		case l.opts.ControllerManager && kind == "PersistentVolume":
			return l.loadVolume(ctx, o)
		case l.opts.ControllerManager && kind == "PersistentVolumeClaim":
			return l.loadClaim(ctx, o)
		default:
			return l.load(ctx, o, keepOwners)
		}
	})
}

// loadCRDs leaves alone what is installed: the product may bring newer CRDs.
func (l *loader) loadCRDs(ctx context.Context, crds []*unstructured.Unstructured) error {
	var missing []*unstructured.Unstructured
	for _, crd := range crds {
		live := crd.DeepCopy()
		switch err := l.client.Get(ctx, client.ObjectKeyFromObject(crd), live); {
		case err == nil:
			l.result.Existing++
		case apierrors.IsNotFound(err):
			missing = append(missing, crd)
			l.result.Created++
		default:
			return fmt.Errorf("looking for %s: %w", manifest.Describe(crd), err)
		}
	}
	return manifest.EnsureCRDs(ctx, l.client, l.ask, missing)
}

// owners says what to do about owner references.
type owners int

const (
	// keepOwners rewrites them to the new uids.
	keepOwners owners = iota
	// dropOwners leaves them out: the controller manager will adopt.
	dropOwners
)

// load creates one object with its status, or remembers the one that is there.
func (l *loader) load(ctx context.Context, o *unstructured.Unstructured, refs owners) error {
	fresh := strip(o)
	if refs == dropOwners {
		fresh.SetOwnerReferences(nil)
	} else if err := l.rewriteOwners(ctx, fresh); err != nil {
		return fmt.Errorf("loading %s: %w", manifest.Describe(o), err)
	}
	if err := l.rewriteTokenUID(ctx, fresh); err != nil {
		return fmt.Errorf("loading %s: %w", manifest.Describe(o), err)
	}
	if err := l.rewriteClaim(fresh); err != nil {
		return fmt.Errorf("loading %s: %w", manifest.Describe(o), err)
	}
	created, err := l.create(ctx, o, fresh)
	if err != nil {
		return fmt.Errorf("loading %s: %w", manifest.Describe(o), err)
	}
	// A run that was interrupted between the two writes left no status by us.
	if created || !wroteStatus(fresh) {
		if err := l.writeStatus(ctx, o, fresh); err != nil {
			return fmt.Errorf("writing the status of %s: %w", manifest.Describe(o), err)
		}
	}
	if created && o.GetDeletionTimestamp() != nil {
		// A deletion cannot be created. Finalizers keep the object there.
		if err := client.IgnoreNotFound(l.client.Delete(ctx, fresh)); err != nil {
			return fmt.Errorf("deleting %s, as it was when exported: %w", manifest.Describe(o), err)
		}
	}
	return nil
}

// create makes fresh the live object and says whether this call created it.
func (l *loader) create(ctx context.Context, o, fresh *unstructured.Unstructured) (bool, error) {
	key := client.ObjectKeyFromObject(fresh)
	err := l.client.Create(ctx, fresh, client.FieldOwner(fieldOwner))
	created := err == nil
	if err != nil {
		// A Service that exists is refused as invalid, because its own address
		// is taken; so any refusal is a reason to look.
		if getErr := l.client.Get(ctx, key, fresh); getErr != nil {
			return false, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.uids[o.GetUID()] = fresh.GetUID()
	if created {
		l.result.Created++
		l.fresh[fresh.GetUID()] = true
	} else {
		l.result.Existing++
	}
	return created, nil
}

// wroteStatus says whether a run of ours wrote the status of a live object, or
// somebody else did since.
func wroteStatus(live *unstructured.Unstructured) bool {
	return slices.ContainsFunc(live.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool { return f.Subresource == "status" })
}

func (l *loader) writeStatus(ctx context.Context, o, live *unstructured.Unstructured) error {
	want, err := status(o, live.GetGeneration())
	if err != nil || len(want) == 0 {
		return err
	}
	patch, err := json.Marshal(map[string]any{"status": want})
	if err != nil {
		return fmt.Errorf("encoding: %w", err)
	}
	err = l.client.Status().Patch(ctx, live, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner))
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return nil // No status subresource: it was created with the object.
	}
	return err
}

// rewriteOwners replaces the uids of owner references. A reference to something
// that does not exist is dropped, or the garbage collector would delete the
// object for it.
func (l *loader) rewriteOwners(ctx context.Context, o *unstructured.Unstructured) error {
	var refs []metav1.OwnerReference
	for _, r := range o.GetOwnerReferences() {
		uid, err := l.liveUID(ctx, o.GetNamespace(), r)
		if err != nil {
			return err
		}
		if uid == "" {
			l.opts.Log.WithField("object", manifest.Describe(o)).WithField("owner", r.Kind+"/"+r.Name).Warn("dropping a reference to a missing owner")
			continue
		}
		r.UID = uid
		refs = append(refs, r)
	}
	o.SetOwnerReferences(refs)
	return nil
}

func (l *loader) liveUID(ctx context.Context, namespace string, r metav1.OwnerReference) (types.UID, error) {
	l.mu.Lock()
	uid, ok := l.uids[r.UID]
	l.mu.Unlock()
	if ok {
		return uid, nil
	}
	owner := &unstructured.Unstructured{}
	owner.SetAPIVersion(r.APIVersion)
	owner.SetKind(r.Kind)
	err := l.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: r.Name}, owner)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("looking for owner %s %s: %w", r.Kind, r.Name, err)
	}
	return owner.GetUID(), nil
}

// rewriteTokenUID ties a token Secret to the new service account: the token
// controller deletes one that names another uid.
func (l *loader) rewriteTokenUID(ctx context.Context, o *unstructured.Unstructured) error {
	if o.GetKind() != "Secret" || !isToken(o) {
		return nil
	}
	notes := o.GetAnnotations()
	uid, err := l.liveUID(ctx, o.GetNamespace(), metav1.OwnerReference{
		APIVersion: "v1", Kind: "ServiceAccount", Name: notes["kubernetes.io/service-account.name"], UID: types.UID(notes[tokenUIDAnnotation]),
	})
	if err != nil || uid == "" {
		return err
	}
	notes[tokenUIDAnnotation] = string(uid)
	o.SetAnnotations(notes)
	return nil
}

// wait polls until done says so.
func (l *loader) wait(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	tick := l.opts.Clock.NewTicker(waitPoll)
	defer tick.Stop()
	for {
		ok, err := done(ctx)
		if err != nil {
			return fmt.Errorf("waiting until %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			hint := errors.New("is a controller manager running?")
			return fmt.Errorf("waiting until %s: %w; %w", what, ctx.Err(), hint)
		}
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
