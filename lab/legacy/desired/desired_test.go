package desired_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mctest"
)

// cluster is an API server alone: it fills in defaults and validates.
var cluster *mc.Cluster

func TestMain(m *testing.M) {
	os.Exit(mctest.Main(m, mc.Options{}, func(c *mc.Cluster) { cluster = c }))
}

// recording is what the real operator wrote for a cluster.
type recording struct {
	t       *testing.T
	objects map[string]*unstructured.Unstructured
	client  client.Client
	input   *desired.Input
}

func read(t *testing.T, id string) *recording {
	t.Helper()
	if cluster == nil {
		t.Skip("needs a cluster, and there is none with -short")
	}
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "testdata", "fixtures", id, "input", "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	r := &recording{t: t, objects: map[string]*unstructured.Unstructured{}}
	for _, f := range files {
		found, err := manifest.ReadFile(f)
		require.NoError(t, err)
		for _, o := range found {
			if o.GetKind() != "Ingress" || o.GetAPIVersion() == networkingv1.SchemeGroupVersion.String() {
				r.objects[o.GetKind()+"/"+o.GetName()] = o
			}
		}
	}
	config, err := desired.Read(r.get("KVMConfig", id))
	require.NoError(t, err)
	components, err := desired.Components(r.get("Release", "v16.2.1"))
	require.NoError(t, err)
	r.input = &desired.Input{
		Config: config, Components: components, Installation: desired.DefaultInstallation(),
		HostVolumeSizes: map[string]string{"pgdata": "500Gi", "objectstore": "500Gi"},
	}
	r.client, err = client.New(cluster.Config(), client.Options{})
	require.NoError(t, err)
	require.NoError(t, client.IgnoreAlreadyExists(r.client.Create(t.Context(), r.input.Namespace())))
	return r
}

func (r *recording) get(kind, name string) *unstructured.Unstructured {
	r.t.Helper()
	o := r.objects[kind+"/"+name]
	require.NotNil(r.t, o, "%s %s is not in the recording", kind, name)
	return o
}

func (r *recording) count(kind string) int {
	n := 0
	for _, o := range r.objects {
		if o.GetKind() == kind {
			n++
		}
	}
	return n
}

// same compares an object, with the API server's defaults, to the recorded one.
func (r *recording) same(o client.Object, allocated ...[]string) {
	r.t.Helper()
	gvk, err := apiutil.GVKForObject(o, r.client.Scheme())
	require.NoError(r.t, err)
	recorded := r.get(gvk.Kind, o.GetName()).DeepCopy()
	require.NoError(r.t, r.create(r.t.Context(), o))
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	require.NoError(r.t, err)
	made := &unstructured.Unstructured{Object: raw}
	assert.Equal(r.t, recorded.GetLabels(), made.GetLabels(), "labels of %s", manifest.Describe(recorded))
	assert.Equal(r.t, own(recorded), own(made), "annotations of %s", manifest.Describe(recorded))
	for _, path := range allocated {
		unstructured.RemoveNestedField(recorded.Object, path...)
		unstructured.RemoveNestedField(made.Object, path...)
	}
	for _, field := range []string{"spec", "roleRef", "subjects"} {
		if diff := cmp.Diff(recorded.Object[field], canonical(r.t, made.Object[field])); diff != "" {
			r.t.Errorf("%s of %s (- recorded, + made):\n%s", field, manifest.Describe(recorded), diff)
		}
	}
}

func (r *recording) create(ctx context.Context, o client.Object) error {
	return r.client.Create(ctx, o, client.DryRunAll)
}

// canonical brings numbers into the form that manifests are read in.
func canonical(t *testing.T, value any) any {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "None", "value": value}}
	raw, err := o.MarshalJSON()
	require.NoError(t, err)
	require.NoError(t, o.UnmarshalJSON(raw))
	return prune(o.Object["value"])
}

// prune drops nulls, which typed objects have and manifests do not.
func prune(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for k, x := range v {
			if x == nil && k != "creationTimestamp" {
				delete(v, k)
				continue
			}
			v[k] = prune(x)
		}
	case []any:
		for i := range v {
			v[i] = prune(v[i])
		}
	}
	return value
}

// own are annotations that controllers did not add.
func own(o *unstructured.Unstructured) map[string]string {
	notes := o.GetAnnotations()
	for _, k := range []string{"deployment.kubernetes.io/revision", "pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller"} {
		delete(notes, k)
	}
	if len(notes) == 0 {
		return nil
	}
	return notes
}

func TestObjectsAreThoseOfTheRealOperator(t *testing.T) {
	for _, id := range []string{"al9qy", "b4n9x"} {
		t.Run(id, func(t *testing.T) {
			r := read(t, id)
			deployments, err := r.input.Deployments()
			require.NoError(t, err)
			assert.Len(t, deployments, r.count("Deployment"))
			for _, d := range deployments {
				// The stray metadata of a template has a creation time when recorded.
				unstructured.RemoveNestedField(r.get("Deployment", d.Name).Object, "spec", "template", "metadata", "creationTimestamp")
				r.same(d)
			}
			for _, s := range r.input.Services() {
				if len(r.input.Spec.KVM.PortMappings) == 0 && s.Name == desired.Worker {
					// The API server chose the node ports.
					for i, p := range recordedPorts(t, r.get("Service", s.Name)) {
						s.Spec.Ports[i].NodePort = p
					}
				}
				r.same(s, []string{"spec", "clusterIP"}, []string{"spec", "clusterIPs"}, []string{"spec", "internalTrafficPolicy"})
			}
			for _, i := range r.input.Ingresses() {
				r.same(i)
			}
			claims := r.input.Claims()
			assert.Len(t, claims, r.count("PersistentVolumeClaim"))
			for _, c := range claims {
				r.same(c, []string{"spec", "volumeName"})
			}
			for _, b := range r.input.ClusterRoleBindings() {
				r.same(b)
			}
			assert.Equal(t, r.get("Namespace", id).GetLabels()["customer"], r.input.Namespace().Labels["customer"])
			assert.Equal(t, r.get("ServiceAccount", id).GetLabels(), r.input.ServiceAccount().Labels)
			for _, name := range r.input.ConfigMapNames() {
				r.get("ConfigMap", name)
			}
		})
	}
}

func recordedPorts(t *testing.T, service *unstructured.Unstructured) []int32 {
	t.Helper()
	list, _, err := unstructured.NestedSlice(service.Object, "spec", "ports")
	require.NoError(t, err)
	ports := make([]int32, 0, len(list))
	for _, x := range list {
		number, _, err := unstructured.NestedInt64(x.(map[string]any), "nodePort")
		require.NoError(t, err)
		ports = append(ports, int32(number))
	}
	return ports
}
