package adopt

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// AsBefore returns a reader that shows the legacy cluster as it was recorded: silenced objects have their old values, and Deployments,
// ReplicaSets and whatever else the migration took away are there. A resumed run translates and checks through it, so it comes to the same
// result as the first, and what others changed meanwhile still shows.
func AsBefore(reader client.Reader, r *Record, removed Removed) client.Reader {
	return &before{Reader: reader, record: r, removed: removed}
}

// Removed is what the migration took away besides Deployments and ReplicaSets.
type Removed struct {
	// Pods are the names of those whose machines were replaced.
	Pods []string
	// Configs tells that the objects that legacy operators act on may be gone.
	Configs bool
}

type before struct {
	client.Reader

	record  *Record
	removed Removed
}

// List lists, puts back what the migration changed, and adds what it removed. Later pages get no additions: the last one has them.
func (b *before) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := b.Reader.List(ctx, list, opts...); err != nil {
		return err
	}
	page, ok := list.(*unstructured.UnstructuredList)
	if !ok {
		return nil
	}
	for i := range page.Items {
		b.restore(&page.Items[i])
	}
	options := client.ListOptions{}
	options.ApplyOptions(opts)
	if page.GetContinue() == "" && options.Continue == "" {
		b.addRemoved(page, options.Namespace)
	}
	return nil
}

// restore puts back the values of fields that the fence or the orphaning changed.
func (b *before) restore(now *unstructured.Unstructured) {
	original := b.record.Original(now.GetKind(), now.GetNamespace(), now.GetName())
	if original == nil || original.GetUID() != now.GetUID() {
		return
	}
	switch now.GetKind() {
	case "KVMConfig", "CertConfig", "Pod":
		setAnnotation(now, legacy.PausedAnnotation, original.GetAnnotations())
	case "KVMClusterConfig", "FlannelConfig":
		if version, found, err := unstructured.NestedString(original.Object, versionPath()...); err == nil && found {
			// The parents are there in the original, so they are a map here as well.
			if spec, ok := now.Object["spec"].(map[string]any); ok {
				if bundle, ok := spec["versionBundle"].(map[string]any); ok {
					bundle["version"] = version
				}
			}
		}
	}
	if now.GetKind() == "Pod" {
		restorePod(now, original)
	}
}

// restorePod puts back what silencing and releasing a pod changed.
func restorePod(now, original *unstructured.Unstructured) {
	if len(now.GetOwnerReferences()) == 0 {
		now.SetOwnerReferences(original.GetOwnerReferences())
	}
	recorded := tolerationsOf(original)
	if spec, ok := now.Object["spec"].(map[string]any); ok && text(tolerationsOf(now)) == text(enduring(recorded)) {
		if spec["tolerations"] = recorded; recorded == nil {
			delete(spec, "tolerations")
		}
	}
}

// addRemoved adds the originals of what the migration removed, under the page's kind.
func (b *before) addRemoved(page *unstructured.UnstructuredList, namespace string) {
	kind := strings.TrimSuffix(page.GetKind(), "List")
	switch kind {
	case "Deployment", "ReplicaSet", "Pod":
	case "KVMConfig", "KVMClusterConfig", "CertConfig", "FlannelConfig":
		if !b.removed.Configs {
			return
		}
	default:
		return
	}
	for _, original := range b.record.Originals(kind) {
		if namespace != "" && original.GetNamespace() != namespace || kind == "Pod" && !slices.Contains(b.removed.Pods, original.GetName()) {
			continue
		}
		there := slices.ContainsFunc(page.Items, func(have unstructured.Unstructured) bool {
			return have.GetName() == original.GetName() && have.GetNamespace() == original.GetNamespace()
		})
		if !there {
			page.Items = append(page.Items, *original)
		}
	}
}

// setAnnotation sets an annotation to its value in from, or removes it when from has none.
func setAnnotation(u *unstructured.Unstructured, name string, from map[string]string) {
	annotations := u.GetAnnotations()
	value, found := from[name]
	switch {
	case found && annotations == nil:
		annotations = map[string]string{name: value}
	case found:
		annotations[name] = value
	default:
		delete(annotations, name)
	}
	if len(annotations) == 0 {
		annotations = nil
	}
	u.SetAnnotations(annotations)
}

func versionPath() []string { return []string{"spec", "versionBundle", "version"} }
