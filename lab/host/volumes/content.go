package volumes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/downward"
)

const defaultMode int32 = 0o644

// content renders a volume that comes out of the API.
func (s *Set) content(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (payload, error) {
	out := payload{}
	switch {
	case v.ConfigMap != nil:
		c := v.ConfigMap
		return out, s.configMap(ctx, pod, c.Name, c.Items, ptr.Deref(c.Optional, false), mode(c.DefaultMode), out)
	case v.Secret != nil:
		c := v.Secret
		return out, s.secret(ctx, pod, c.SecretName, c.Items, ptr.Deref(c.Optional, false), mode(c.DefaultMode), out)
	case v.DownwardAPI != nil:
		return out, s.downwardAPI(pod, v.DownwardAPI.Items, mode(v.DownwardAPI.DefaultMode), out)
	default:
		return out, s.projected(ctx, pod, v, out)
	}
}

func mode(m *int32) int32 { return ptr.Deref(m, defaultMode) }

func (s *Set) projected(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, out payload) error {
	m := mode(v.Projected.DefaultMode)
	for i, source := range v.Projected.Sources {
		var err error
		switch {
		case source.ConfigMap != nil:
			c := source.ConfigMap
			err = s.configMap(ctx, pod, c.Name, c.Items, ptr.Deref(c.Optional, false), m, out)
		case source.Secret != nil:
			c := source.Secret
			err = s.secret(ctx, pod, c.Name, c.Items, ptr.Deref(c.Optional, false), m, out)
		case source.DownwardAPI != nil:
			err = s.downwardAPI(pod, source.DownwardAPI.Items, m, out)
		case source.ServiceAccountToken != nil:
			err = s.serviceAccountToken(ctx, pod, v.Name+"/"+strconv.Itoa(i), source.ServiceAccountToken, m, out)
		default:
			err = fmt.Errorf("source %d is of a kind that is not supported by the lab's hosts", i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Set) configMap(ctx context.Context, pod *corev1.Pod, name string, items []corev1.KeyToPath, optional bool, m int32, out payload) error {
	cm, err := s.manager.Client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	data := map[string][]byte{}
	for k, v := range cm.Data {
		data[k] = []byte(v)
	}
	maps.Copy(data, cm.BinaryData)
	return choose(data, items, optional, m, "configmap "+name, out)
}

func (s *Set) secret(ctx context.Context, pod *corev1.Pod, name string, items []corev1.KeyToPath, optional bool, m int32, out payload) error {
	secret, err := s.manager.Client.CoreV1().Secrets(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	return choose(secret.Data, items, optional, m, "secret "+name, out)
}

func choose(data map[string][]byte, items []corev1.KeyToPath, optional bool, m int32, subject string, out payload) error {
	if len(items) == 0 {
		for _, key := range slices.Sorted(maps.Keys(data)) {
			out[key] = file{data: data[key], mode: m}
		}
		return nil
	}
	for _, item := range items {
		raw, ok := data[item.Key]
		if !ok && optional {
			continue
		}
		if !ok {
			return fmt.Errorf("%s has no key %q", subject, item.Key)
		}
		out[item.Path] = file{data: raw, mode: ptr.Deref(item.Mode, m)}
	}
	return nil
}

func (s *Set) downwardAPI(pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile, m int32, out payload) error {
	for _, item := range items {
		var text string
		var err error
		switch {
		case item.FieldRef != nil:
			text, err = downward.Field(pod, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			text, err = downward.Resource(pod, "", item.ResourceFieldRef, s.manager.Allocatable)
		}
		if err != nil {
			return fmt.Errorf("downward API item %q: %w", item.Path, err)
		}
		out[item.Path] = file{data: []byte(text), mode: ptr.Deref(item.Mode, m)}
	}
	return nil
}

// serviceAccountToken requests a token that dies with the pod, and a new one after four fifths of its life.
func (s *Set) serviceAccountToken(
	ctx context.Context, pod *corev1.Pod, key string, source *corev1.ServiceAccountTokenProjection, m int32, out payload,
) error {
	t, ok := s.tokens[key]
	if !ok || s.manager.Clock.Now().After(t.renewAt) {
		var err error
		if t, err = s.requestToken(ctx, pod, source); err != nil {
			return err
		}
		s.tokens[key] = t
	}
	out[source.Path] = file{data: []byte(t.value), mode: m}
	return nil
}

func (s *Set) requestToken(ctx context.Context, pod *corev1.Pod, source *corev1.ServiceAccountTokenProjection) (token, error) {
	seconds := ptr.Deref(source.ExpirationSeconds, 3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	now := s.manager.Clock.Now()
	account := pod.Spec.ServiceAccountName
	got, err := s.manager.Client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return token{}, fmt.Errorf("requesting a token for service account %q: %w", strings.TrimSpace(account), err)
	}
	life := got.Status.ExpirationTimestamp.Sub(now)
	// API servers may hand out tokens for a year; a renewal a day is what kubelets do then.
	renew := min(life*4/5, 24*time.Hour)
	return token{value: got.Status.Token, renewAt: now.Add(renew)}, nil
}
