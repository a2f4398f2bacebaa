package legacy

import "strings"

// PausedAnnotation on an object stops operatorkit 2 and newer from reconciling it, its deletion included (legacy-system.md 9.1).
const PausedAnnotation = "operatorkit.giantswarm.io/paused"

// operatorFinalizers is how the finalizers of legacy operators begin.
const operatorFinalizers = "operatorkit.giantswarm.io/"

// IsOperatorFinalizer tells a finalizer of a legacy operator from one of Kubernetes itself.
func IsOperatorFinalizer(name string) bool { return strings.HasPrefix(name, operatorFinalizers) }

// NobodysVersion is a version that no operator runs as.
const NobodysVersion = "0.0.0"

// Silence is one change that keeps a legacy operator away from an object.
type Silence struct {
	Ref Ref
	// Path is the field to set, and Before its value as it was read; Found tells whether there was any.
	Path   []string
	Before string
	Found  bool
	// After is the value to set.
	After string
	// Who is silenced, for people.
	Who string
}

// Done tells that the field has its value already.
func (s Silence) Done() bool { return s.Found && s.Before == s.After }

// Fence is the one list of what silences the legacy writers of a cluster, in the order in which it has to be done. operatorkit 2 and newer
// honours an annotation on the object it reconciles; cluster-operator and flannel-operator do not, so their objects are made invisible
// by a version that nobody runs as.
func Fence(c *Cluster) []Silence {
	var out []Silence
	pause := func(ref Ref, annotations map[string]string, who string) {
		before, found := annotations[PausedAnnotation]
		out = append(out, Silence{
			Ref: ref, Path: []string{"metadata", "annotations", PausedAnnotation}, Before: before, Found: found, After: "true", Who: "stops " + who,
		})
	}
	hide := func(ref Ref, before, who string) {
		out = append(out, Silence{
			Ref: ref, Path: []string{"spec", "versionBundle", "version"}, Before: before, Found: true, After: NobodysVersion,
			Who: "hides the object from " + who + ", which ignores annotations",
		})
	}
	if c.Config != nil {
		pause(c.Config.Ref, c.Config.Object.Annotations, "kvm-operator's controllers of this cluster, node deleter and terminator included")
	}
	for i := range c.Nodes {
		if pod := c.Nodes[i].Pod; pod != nil {
			pause(pod.Ref, pod.Object.Annotations, "kvm-operator's drainer for this VM; from then on the Endpoints stay as they are, and the pod tolerates a host that does not answer for as long as that lasts")
		}
	}
	for i := range c.CertConfigs {
		pause(c.CertConfigs[i].Ref, c.CertConfigs[i].Object.Annotations, "cert-operator, so that the certificate stays as it is")
	}
	if c.ClusterConfig != nil {
		hide(c.ClusterConfig.Ref, c.ClusterConfig.Object.Spec.VersionBundle.Version, "cluster-operator")
	}
	if c.Flannel != nil {
		hide(c.Flannel.Ref, c.Flannel.Object.Spec.VersionBundle.Version, "flannel-operator")
	}
	return out
}
