package pods

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/downward"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/images"
)

// variables are an environment under construction. Services can be referred to by $(NAME) like the container's own.
type variables struct {
	names  []string
	values map[string]string
}

func (v *variables) set(name, value string) {
	if _, ok := v.values[name]; !ok {
		v.names = append(v.names, name)
	}
	v.values[name] = value
}

func (v *variables) list() []string {
	out := make([]string, 0, len(v.names))
	for _, n := range v.names {
		out = append(out, n+"="+v.values[n])
	}
	return out
}

// expand replaces $(NAME) by the variable's value. $$ is a dollar sign, and what is not a known variable stays as it is.
func (v *variables) expand(text string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		rest, escaped := strings.CutPrefix(after, "$")
		name, tail, closed := strings.Cut(strings.TrimPrefix(after, "("), ")")
		value, known := v.values[name]
		switch {
		case escaped:
			b.WriteByte('$')
			text = rest
		case strings.HasPrefix(after, "(") && closed && known:
			b.WriteString(value)
			text = tail
		default:
			b.WriteByte('$')
			text = after
		}
	}
}

func (v *variables) expandAll(texts []string) []string {
	out := make([]string, 0, len(texts))
	for _, t := range texts {
		out = append(out, v.expand(t))
	}
	return out
}

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment puts the container's environment together: the image's, services, envFrom, env; later ones win.
func (w *worker) environment(ctx context.Context, pod *corev1.Pod, c *corev1.Container, image *images.Image) (*variables, error) {
	v := &variables{values: map[string]string{}}
	v.set("PATH", searchPath)
	v.set("HOSTNAME", w.hostname())
	v.set("HOME", "/root")
	for _, name := range slices.Sorted(maps.Keys(image.Env)) {
		v.set(name, image.Env[name])
	}
	if err := w.services(pod, v); err != nil {
		return nil, err
	}
	for _, source := range c.EnvFrom {
		if err := w.envFrom(ctx, &source, v); err != nil {
			return nil, err
		}
	}
	for _, e := range c.Env {
		value := v.expand(e.Value)
		if e.ValueFrom != nil {
			got, ok, err := w.valueFrom(ctx, pod, c, e.ValueFrom)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			value = got
		}
		v.set(e.Name, value)
	}
	return v, nil
}

// services are variables for the API server's Service and, unless the pod does not want them, for those of its namespace.
func (w *worker) services(pod *corev1.Pod, v *variables) error {
	all, err := w.opts.Services.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing services: %w", err)
	}
	slices.SortFunc(all, func(a, b *corev1.Service) int { return strings.Compare(a.Namespace+a.Name, b.Namespace+b.Name) })
	for _, s := range all {
		master := s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes"
		linked := s.Namespace == pod.Namespace && ptr.Deref(pod.Spec.EnableServiceLinks, true)
		if (master || linked) && s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone && len(s.Spec.Ports) > 0 {
			serviceVariables(s, v)
		}
	}
	return nil
}

func serviceVariables(s *corev1.Service, v *variables) {
	name := strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
	ip := s.Spec.ClusterIP
	v.set(name+"_SERVICE_HOST", ip)
	v.set(name+"_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port)))
	for i, p := range s.Spec.Ports {
		port := strconv.Itoa(int(p.Port))
		if p.Name != "" {
			v.set(name+"_SERVICE_PORT_"+strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_")), port)
		}
		proto := string(p.Protocol)
		url := strings.ToLower(proto) + "://" + net.JoinHostPort(ip, port)
		if i == 0 {
			v.set(name+"_PORT", url)
		}
		prefix := name + "_PORT_" + port + "_" + proto
		v.set(prefix, url)
		v.set(prefix+"_PROTO", strings.ToLower(proto))
		v.set(prefix+"_PORT", port)
		v.set(prefix+"_ADDR", ip)
	}
}

func (w *worker) envFrom(ctx context.Context, source *corev1.EnvFromSource, v *variables) error {
	data := map[string]string{}
	switch {
	case source.ConfigMapRef != nil:
		cm, err := w.opts.Client.CoreV1().ConfigMaps(w.namespace).Get(ctx, source.ConfigMapRef.Name, metav1.GetOptions{})
		if err != nil {
			return optional(err, source.ConfigMapRef.Optional)
		}
		data = cm.Data
	case source.SecretRef != nil:
		secret, err := w.opts.Client.CoreV1().Secrets(w.namespace).Get(ctx, source.SecretRef.Name, metav1.GetOptions{})
		if err != nil {
			return optional(err, source.SecretRef.Optional)
		}
		for k, raw := range secret.Data {
			data[k] = string(raw)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(data)) {
		v.set(source.Prefix+k, data[k])
	}
	return nil
}

func optional(err error, allowed *bool) error {
	if apierrors.IsNotFound(err) && ptr.Deref(allowed, false) {
		return nil
	}
	return err
}

// valueFrom finds a variable's value. An optional one that is missing gives false.
func (w *worker) valueFrom(ctx context.Context, pod *corev1.Pod, c *corev1.Container, from *corev1.EnvVarSource) (string, bool, error) {
	switch {
	case from.FieldRef != nil:
		value, err := downward.Field(pod, from.FieldRef.FieldPath)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err := downward.Resource(pod, c.Name, from.ResourceFieldRef, w.opts.Allocatable)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		cm, err := w.opts.Client.CoreV1().ConfigMaps(w.namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return "", false, optional(err, ref.Optional)
		}
		value, ok := cm.Data[ref.Key]
		return value, ok, missingKey(ok, ref.Optional, "configmap", ref.Name, ref.Key)
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		secret, err := w.opts.Client.CoreV1().Secrets(w.namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return "", false, optional(err, ref.Optional)
		}
		raw, ok := secret.Data[ref.Key]
		return string(raw), ok, missingKey(ok, ref.Optional, "secret", ref.Name, ref.Key)
	default:
		return "", false, fmt.Errorf("the source of a variable of container %s is not supported", c.Name)
	}
}

func missingKey(found bool, allowed *bool, kind, name, key string) error {
	if found || ptr.Deref(allowed, false) {
		return nil
	}
	return fmt.Errorf("%s %q has no key %q", kind, name, key)
}
