package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// Mounter mounts where containers see it.
type Mounter interface {
	Do(f func() error) error
	MountTmpfs(dir string, size int64) error
	Unmount(dir string) error
}

// Manager puts volumes of pods on the host.
type Manager struct {
	Client    kubernetes.Interface
	Mounter   Mounter
	HostPaths HostPaths
	// MemoryDir is a directory in a tmpfs, for what comes out of the API.
	MemoryDir string
	// Allocatable of the node, for resources without a limit.
	Allocatable corev1.ResourceList
	Clock       clock.PassiveClock
}

// Source is where a volume is on the machine.
type Source struct {
	Path     string
	ReadOnly bool
}

// Set is the volumes of one pod.
type Set struct {
	manager *Manager
	dir     string
	memory  string
	sources map[string]Source
	written map[string]payload
	mounted []string
	tokens  map[string]token
}

type token struct {
	value   string
	renewAt time.Time
}

// NewSet returns the volumes of a pod, none of which is set up yet. What lasts as long as the pod lives in dir.
func (m *Manager) NewSet(pod *corev1.Pod, dir string) *Set {
	return &Set{
		manager: m, dir: dir, memory: filepath.Join(m.MemoryDir, string(pod.UID)),
		sources: map[string]Source{}, written: map[string]payload{}, tokens: map[string]token{},
	}
}

// Find returns where a volume is.
func (s *Set) Find(name string) (Source, bool) {
	v, ok := s.sources[name]
	return v, ok
}

// Ensure sets up the volumes that are not there yet. It may be called again after an error.
func (s *Set) Ensure(ctx context.Context, pod *corev1.Pod) error {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if _, ok := s.sources[v.Name]; ok {
			continue
		}
		source, err := s.setUp(ctx, pod, v)
		if err != nil {
			return fmt.Errorf("volume %q: %w", v.Name, err)
		}
		s.sources[v.Name] = source
	}
	return nil
}

// Refresh brings what comes out of the API up to date.
func (s *Set) Refresh(ctx context.Context, pod *corev1.Pod) error {
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if _, dynamic := s.written[v.Name]; !dynamic {
			continue
		}
		if _, err := s.render(ctx, pod, v); err != nil {
			errs = append(errs, fmt.Errorf("updating volume %q: %w", v.Name, err))
		}
	}
	return errors.Join(errs...)
}

// TearDown removes the volumes that end with the pod.
func (s *Set) TearDown() error {
	errs := make([]error, 0, len(s.mounted)+2)
	for _, dir := range s.mounted {
		errs = append(errs, s.manager.Mounter.Unmount(dir))
	}
	errs = append(errs,
		s.manager.Mounter.Do(func() error { return os.RemoveAll(s.memory) }),
		os.RemoveAll(s.dir))
	s.sources, s.mounted = map[string]Source{}, nil
	return errors.Join(errs...)
}

func (s *Set) setUp(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (Source, error) {
	switch {
	case v.EmptyDir != nil:
		return s.emptyDir(v)
	case v.HostPath != nil:
		where, err := s.manager.HostPaths.ensure(v.HostPath)
		return Source{Path: where}, err
	case v.PersistentVolumeClaim != nil:
		return s.claim(ctx, pod, v.PersistentVolumeClaim)
	case v.Ephemeral != nil:
		return s.claim(ctx, pod, &corev1.PersistentVolumeClaimVolumeSource{ClaimName: pod.Name + "-" + v.Name})
	case v.ConfigMap != nil, v.Secret != nil, v.DownwardAPI != nil, v.Projected != nil:
		return s.render(ctx, pod, v)
	default:
		return Source{}, errors.New("this kind of volume is not supported by the lab's hosts")
	}
}

func (s *Set) emptyDir(v *corev1.Volume) (Source, error) {
	where := filepath.Join(s.dir, v.Name)
	if err := os.MkdirAll(where, 0o777); err != nil { //nolint:gosec // As a kubelet does.
		return Source{}, fmt.Errorf("making the directory: %w", err)
	}
	if err := os.Chmod(where, 0o777); err != nil { //nolint:gosec // As a kubelet does.
		return Source{}, fmt.Errorf("making the directory: %w", err)
	}
	if v.EmptyDir.Medium != corev1.StorageMediumMemory {
		return Source{Path: where}, nil
	}
	var size int64
	if v.EmptyDir.SizeLimit != nil {
		size = v.EmptyDir.SizeLimit.Value()
	}
	if err := s.manager.Mounter.MountTmpfs(where, size); err != nil {
		return Source{}, err
	}
	s.mounted = append(s.mounted, where)
	return Source{Path: where}, nil
}

// claim finds the directory behind a bound claim.
func (s *Set) claim(ctx context.Context, pod *corev1.Pod, ref *corev1.PersistentVolumeClaimVolumeSource) (Source, error) {
	core := s.manager.Client.CoreV1()
	pvc, err := core.PersistentVolumeClaims(pod.Namespace).Get(ctx, ref.ClaimName, metav1.GetOptions{})
	if err != nil {
		return Source{}, fmt.Errorf("reading the claim: %w", err)
	}
	if pvc.Status.Phase != corev1.ClaimBound || pvc.Spec.VolumeName == "" {
		return Source{}, fmt.Errorf("claim %q is not bound", ref.ClaimName)
	}
	pv, err := core.PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return Source{}, fmt.Errorf("reading the persistent volume: %w", err)
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != pvc.UID {
		return Source{}, fmt.Errorf("persistent volume %q is not bound to claim %q", pv.Name, ref.ClaimName)
	}
	switch {
	case pv.Spec.HostPath != nil:
		where, err := s.manager.HostPaths.ensure(pv.Spec.HostPath)
		return Source{Path: where, ReadOnly: ref.ReadOnly}, err
	case pv.Spec.Local != nil:
		where := s.manager.HostPaths.On(pv.Spec.Local.Path)
		if _, err := os.Stat(where); err != nil {
			return Source{}, fmt.Errorf("path %q of persistent volume %q does not exist", pv.Spec.Local.Path, pv.Name)
		}
		return Source{Path: where, ReadOnly: ref.ReadOnly}, nil
	default:
		return Source{}, fmt.Errorf("persistent volume %q is neither a host path nor local", pv.Name)
	}
}

// render writes a volume that comes out of the API, if it has changed.
func (s *Set) render(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (Source, error) {
	content, err := s.content(ctx, pod, v)
	if err != nil {
		return Source{}, err
	}
	where := filepath.Join(s.memory, v.Name)
	if old, ok := s.written[v.Name]; !ok || !old.equal(content) {
		if err := s.manager.Mounter.Do(func() error { return content.write(where) }); err != nil {
			return Source{}, err
		}
		s.written[v.Name] = content
	}
	return Source{Path: where, ReadOnly: true}, nil
}
