package translate

import (
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

// Options are what a translation needs beyond the picture. The zero value translates with the defaults below.
type Options struct {
	// Namespace for the Cluster API objects; default org-<organization>.
	Namespace string
	// KubernetesVersion of the first new control plane, with or without leading v; default: the newest patch of the legacy minor
	// plus one (design decision 7).
	KubernetesVersion string
	// Image of new machines; {version} stands for the Kubernetes version. Default kubernetes-{version}.
	Image string
	// ImageRepository of the control plane's images; default registry.k8s.io.
	ImageRepository string
	// CAKey is the PEM private key of the cluster's CA, verified by the caller. Without it the -ca and -etcd Secrets lack their key
	// and the plan is not applyable; a check says so.
	CAKey []byte
	// CACert is the PEM certificate that belongs to CAKey; default: the CA of the legacy certificate Secrets.
	CACert []byte
	// Answers are decisions taken by humans, by field key or finding id.
	Answers map[string]finding.Answer
}

func (o Options) withDefaults() Options {
	if o.Image == "" {
		o.Image = "kubernetes-{version}"
	}
	if o.ImageRepository == "" {
		o.ImageRepository = "registry.k8s.io"
	}
	return o
}
