package builder

import certmanager "github.com/giantswarm/cluster-api-provider-kvm/lab/certmanager/program"

// CertManagerVersion is the cert-manager that clusterctl installs in the lab.
const CertManagerVersion = "v1.19.1"

// Names of the components of cert-manager.
const (
	CertManagerController = "cert-manager-controller"
	CertManagerWebhook    = "cert-manager-webhook"
	CertManagerCAInjector = "cert-manager-cainjector"
	CertManagerFiles      = "cert-manager-files"
)

// certManager describes the components of cert-manager: its programs, and the
// CRDs of its release.
func certManager() []Component {
	source := Source{Module: "github.com/cert-manager/cert-manager", Version: CertManagerVersion}
	made := func(name, text string) Component {
		return Component{Name: name, Version: CertManagerVersion, Source: source, Program: text, Optional: true}
	}
	return []Component{
		made(CertManagerController, certmanager.Controller),
		made(CertManagerWebhook, certmanager.Webhook),
		made(CertManagerCAInjector, certmanager.CAInjector),
		{Name: CertManagerFiles, Version: CertManagerVersion, Source: source, Optional: true, Files: map[string]string{"deploy/crds": "crds"}},
	}
}
