package check

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/pki"
)

const (
	// expiryBlock is the shortest validity that covers the maintenance windows of a migration and a way back.
	expiryBlock = 3 * 24 * time.Hour
	// expiryWarn is when a renewal should be planned.
	expiryWarn = 30 * 24 * time.Hour
	// authorityWarn is how long a CA should last beyond the migration.
	authorityWarn = 365 * 24 * time.Hour
	// encryptionKeyLength is that of aescbc keys the platform makes.
	encryptionKeyLength = 32
)

// components are the certificates of a cluster; the essential ones take part in the migration itself.
func components() (essential, others []string) {
	return []string{"api", "etcd", "service-account", "worker"},
		[]string{"app-operator-api", "calico-etcd-client", "cluster-operator-api", "flanneld-etcd-client", "node-operator", "prometheus"}
}

func certificatesExist(v *view) verdict {
	essential, others := components()
	var missing, mild []string
	for _, component := range essential {
		if v.cluster.Certificates[component] == nil {
			missing = append(missing, v.cluster.ID+"-"+component)
		}
	}
	for _, component := range others {
		if v.cluster.Certificates[component] == nil {
			mild = append(mild, v.cluster.ID+"-"+component)
		}
	}
	switch {
	case len(missing) > 0:
		return failed(append(missing, mild...), "%s missing that the migration needs", plural(len(missing), "secret is", "secrets are"))
	case len(mild) > 0:
		return warned(mild, "%s missing; only the legacy operators and agents use them", plural(len(mild), "secret is", "secrets are"))
	default:
		return held("%d secrets", len(essential)+len(others))
	}
}

func certificatesComplete(v *view) verdict {
	items := slices.Clone(v.unreadable)
	for component, certificate := range v.cluster.Certificates {
		for _, part := range []struct {
			key   string
			value []byte
		}{{"ca", certificate.CAPEM}, {"crt", certificate.CertPEM}, {"key", certificate.KeyPEM}} {
			if len(bytes.TrimSpace(part.value)) == 0 {
				items = append(items, fmt.Sprintf("%s: data key %s is missing or empty", certificate.Secret.Ref, part.key))
			}
		}
		if leaf := v.leaf(component); leaf != nil && len(certificate.KeyPEM) > 0 && !leaf.KeyFits {
			items = append(items, fmt.Sprintf("%s: the key does not belong to the certificate", certificate.Secret.Ref))
		}
	}
	if len(items) > 0 {
		return failed(items, "not every certificate secret is usable")
	}
	return held("%s with key and CA", plural(len(v.leafs), "certificate", "certificates"))
}

// encryptionKey returns the text of the key as the API server has it, or why it is none.
func encryptionKey(v *view) (string, error) {
	value := bytes.TrimSpace(v.cluster.Encryption.Object.Data["encryption"])
	key, problem := base64.StdEncoding.DecodeString(string(value))
	switch {
	case len(value) == 0:
		return "", errors.New("data key encryption is missing or empty")
	case problem != nil:
		return "", errors.New("data key encryption is not base64 text")
	case len(key) != encryptionKeyLength:
		return "", fmt.Errorf("the key has %d bytes, not %d", len(key), encryptionKeyLength)
	default:
		return string(value), nil
	}
}

func encryptionKeyThere(v *view) verdict {
	if v.cluster.Encryption == nil {
		return failed([]string{v.cluster.ID + "-encryption"}, "the secret with the key of the encryption at rest is missing: without it no Secret of the cluster can be read")
	}
	if v.cluster.Redacted {
		return held("%s is there; the snapshot does not hold its value", v.cluster.Encryption.Ref)
	}
	if _, err := encryptionKey(v); err != nil {
		return failed([]string{v.cluster.Encryption.Ref.String()}, "%v", err)
	}
	return held("%d bytes in %s", encryptionKeyLength, v.cluster.Encryption.Ref)
}

func encryptionKeyUsed(v *view) verdict {
	text, err := encryptionKey(v)
	if err != nil {
		return failed([]string{v.cluster.Encryption.Ref.String()}, "%v", err)
	}
	file := v.boot.File(fileEncryption)
	if file == nil {
		return failed([]string{fileEncryption}, "the master's boot configuration holds no encryption configuration")
	}
	var config struct {
		Resources []struct {
			Providers []struct {
				AESCBC *struct {
					Keys []struct {
						Name   string `json:"name"`
						Secret string `json:"secret"`
					} `json:"keys"`
				} `json:"aescbc"`
			} `json:"providers"`
		} `json:"resources"`
	}
	// A decoder's error may quote the text, and the text is a key.
	if yaml.Unmarshal(file.Content, &config) != nil {
		return failed([]string{fileEncryption}, "the master's encryption configuration is not readable")
	}
	for _, resource := range config.Resources {
		for _, provider := range resource.Providers {
			if provider.AESCBC == nil || len(provider.AESCBC.Keys) == 0 {
				continue
			}
			first := provider.AESCBC.Keys[0]
			switch {
			case first.Name != "key1":
				return failed([]string{fileEncryption}, "the API server's first key is called %q, not key1", first.Name)
			case strings.TrimSpace(first.Secret) != text:
				return failed([]string{v.cluster.Encryption.Ref.String(), fileEncryption}, "the key in the secret is not the one the API server was started with")
			}
			return held("key1 of the API server is the key in %s", v.cluster.Encryption.Ref)
		}
	}
	return failed([]string{fileEncryption}, "the master's encryption configuration names no aescbc key")
}

func serviceAccountKeyUsed(v *view) verdict {
	certificate := v.cluster.Certificates["service-account"]
	if certificate == nil {
		return failed([]string{v.cluster.ID + "-service-account"}, "the secret is missing")
	}
	file := v.boot.File(fileServiceAccount)
	if file == nil {
		return failed([]string{fileServiceAccount}, "the master's boot configuration holds no service account key")
	}
	if !sameKey(certificate.KeyPEM, file.Content) {
		return failed([]string{certificate.Secret.Ref.String(), fileServiceAccount}, "the key in the secret is not the one the API server was started with: every service account token would become invalid")
	}
	return held("the API server signs tokens with the key in %s", certificate.Secret.Ref)
}

// sameKey compares two PEM keys without regard to white space.
func sameKey(a, b []byte) bool {
	a, b = bytes.TrimSpace(a), bytes.TrimSpace(b)
	return len(a) > 0 && bytes.Equal(a, b)
}

func certificatesCurrent(v *view) verdict {
	var items []string
	compare := func(component, path string, content []byte) {
		certificate := v.cluster.Certificates[component]
		if certificate != nil && len(certificate.CertPEM) > 0 && len(content) > 0 &&
			!bytes.Equal(bytes.TrimSpace(certificate.CertPEM), bytes.TrimSpace(content)) {
			items = append(items, fmt.Sprintf("%s differs from %s in the boot configuration", certificate.Secret.Ref, path))
		}
	}
	for component, path := range map[string]string{"api": fileAPICertificate, "etcd": fileEtcdCertificate} {
		if file := v.boot.File(path); file != nil {
			compare(component, path, file.Content)
		}
	}
	for _, node := range v.cluster.Workers() {
		if file := node.Ignition.File(fileWorker); file != nil {
			compare("worker", "ConfigMap "+node.ConfigMap.Object.Name+" "+fileWorker, file.Content)
		}
	}
	if len(items) > 0 {
		return failed(items, "certificates were renewed and have not reached the boot configuration")
	}
	return held("secrets and boot configuration agree; which certificate a running VM uses cannot be told from here, it may be older")
}

func kubeconfigThere(v *view) verdict {
	name := "Secret/" + v.cluster.ID + "/" + v.cluster.ID + "-kubeconfig"
	if v.cluster.Kubeconfig == nil {
		return failed([]string{name}, "the legacy kubeconfig is missing; one can be made from the CA")
	}
	ref := v.cluster.Kubeconfig.Ref.String()
	if v.cluster.Redacted {
		return held("%s is there; the snapshot does not hold its value", ref)
	}
	text := v.cluster.Kubeconfig.Object.Data["kubeConfig"]
	if len(text) == 0 {
		return failed([]string{ref}, "data key kubeConfig is missing or empty")
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
			} `json:"cluster"`
		} `json:"clusters"`
	}
	if yaml.Unmarshal(text, &config) != nil || len(config.Clusters) == 0 {
		return failed([]string{ref}, "the kubeconfig is not readable")
	}
	server := strings.TrimSuffix(config.Clusters[0].Cluster.Server, ":443")
	if v.config != nil && server != "https://"+v.config.Spec.Cluster.Kubernetes.API.Domain {
		return failed([]string{ref}, "it points at %q, not at the API's name", server)
	}
	return held("%s", ref)
}

// ---- certificate authority.

func authorityAtHand(v *view) verdict {
	const ways = "give it with --ca-cert and --ca-key (two files), --ca-secret NAMESPACE/NAME, or --ca-vault PATH"
	if v.CAError != nil {
		return failed(nil, "the CA could not be read: %v", v.CAError).with(ways)
	}
	if v.CA == nil {
		return failed(nil, "no CA private key was given; Cluster API cannot run a control plane without it").with(ways)
	}
	return held("%s", v.CA)
}

func authorityUsable(v *view) verdict {
	var items []string
	for _, err := range []error{v.CA.Matches(), v.CA.MaySign()} {
		if err != nil {
			items = append(items, err.Error())
		}
	}
	if len(items) > 0 {
		return failed(items, "the pair from %s is no usable authority", v.CA.Origin)
	}
	return held("the key belongs to the certificate %s, which may sign", v.CA.Certificate.Subject.CommonName)
}

func authoritySigned(v *view) verdict {
	if len(v.leafs) == 0 {
		return skipped("no certificate of the cluster is readable")
	}
	var items []string
	for _, leaf := range v.leafs {
		// Expiry has checks of its own; here only the signature counts, so time is moved into the leaf's validity.
		at := v.Now
		if at.After(leaf.Certificate.NotAfter) {
			at = leaf.Certificate.NotAfter
		}
		if at.Before(leaf.Certificate.NotBefore) {
			at = leaf.Certificate.NotBefore
		}
		if err := v.CA.Signed(leaf, at); err != nil {
			items = append(items, fmt.Sprintf("%s: %v (issuer %s)", leaf.Name, err, leaf.Facts.Issuer))
		}
	}
	if len(items) > 0 {
		return failed(items, "the CA that was given is not the cluster's")
	}
	return held("%s signed by it, by key identifier and by signature", plural(len(v.leafs), "certificate was", "certificates were"))
}

func oneAuthority(v *view) verdict {
	if len(v.leafs) == 0 {
		return skipped("no certificate of the cluster is readable")
	}
	by := map[string][]string{}
	var items []string
	for _, leaf := range v.leafs {
		if leaf.Authority == nil {
			items = append(items, leaf.Name+" has no CA beside it")
			continue
		}
		fingerprint := pki.Fingerprint(leaf.Authority)
		by[fingerprint] = append(by[fingerprint], leaf.Name)
		if !pki.SignedBy(leaf.Certificate, leaf.Authority) {
			items = append(items, leaf.Name+" was not signed by the CA beside it")
		}
	}
	if len(by) > 1 {
		for fingerprint, names := range by {
			items = append(items, fmt.Sprintf("CA sha256 %.16s…: %s", fingerprint, strings.Join(names, ", ")))
		}
	}
	if len(items) > 0 {
		return failed(items, "the certificates do not hang together")
	}
	return held("%s, one CA: %s", plural(len(v.leafs), "certificate", "certificates"), v.leafs[0].Facts.Issuer)
}

func certificatesLast(v *view) verdict {
	if len(v.leafs) == 0 {
		return skipped("no certificate of the cluster is readable")
	}
	var items []string
	worst := Pass
	first := v.leafs[0].Facts.NotAfter
	for _, leaf := range v.leafs {
		end := leaf.Facts.NotAfter
		if end.Before(first) {
			first = end
		}
		left := end.Sub(v.Now)
		switch {
		case v.Now.Before(leaf.Facts.NotBefore):
			worst = worse(worst, Block)
			items = append(items, fmt.Sprintf("%s is valid only from %s", leaf.Name, leaf.Facts.NotBefore.Format(time.RFC3339)))
		case left <= 0:
			worst = worse(worst, Block)
			items = append(items, fmt.Sprintf("%s expired on %s", leaf.Name, end.Format(time.RFC3339)))
		case left < expiryBlock:
			worst = worse(worst, Block)
			items = append(items, fmt.Sprintf("%s expires on %s, within the time a migration may take", leaf.Name, end.Format(time.RFC3339)))
		case left < expiryWarn:
			worst = worse(worst, Warn)
			items = append(items, fmt.Sprintf("%s expires on %s", leaf.Name, end.Format(time.RFC3339)))
		}
	}
	if len(items) > 0 {
		return failed(items, "%s too short", plural(len(items), "certificate lasts", "certificates last")).as(worst)
	}
	return held("the first one expires on %s", first.Format("2006-01-02"))
}

func authorityLasts(v *view) verdict {
	authority := v.authority()
	if authority == nil {
		return skipped("no CA certificate is readable")
	}
	end, who := authority.NotAfter, authority.Subject.CommonName
	switch left := end.Sub(v.Now); {
	case left <= expiryWarn:
		return failed([]string{who}, "the CA's time ends on %s", end.UTC().Format(time.RFC3339))
	case left <= authorityWarn:
		return warned([]string{who}, "the CA's time ends on %s; plan its rotation for soon after the migration", end.UTC().Format(time.RFC3339))
	default:
		return held("%s until %s", who, end.UTC().Format("2006-01-02"))
	}
}

// authority is the CA certificate that was given, else the first that lies beside one of the cluster's certificates; nil without any.
func (v *view) authority() *x509.Certificate {
	if v.CA != nil {
		return v.CA.Certificate
	}
	for n := range v.leafs {
		if authority := v.leafs[n].Authority; authority != nil {
			return authority
		}
	}
	return nil
}

func certificateNames(v *view) verdict {
	api, etcd := v.leaf("api"), v.leaf("etcd")
	if api == nil && etcd == nil {
		return skipped("neither the API's nor etcd's certificate is readable")
	}
	spec := &v.config.Spec.Cluster
	worst := Pass
	var items []string
	want := func(leaf *pki.Leaf, name string, outcome Outcome) {
		if name != "" && leaf != nil && !leaf.Covers(name) {
			worst = worse(worst, outcome)
			items = append(items, fmt.Sprintf("certificate %s is not valid for %s", leaf.Name, name))
		}
	}
	want(api, spec.Kubernetes.API.Domain, Block)
	// Pods reach the API by these; their absence shows only when a component verifies what it is told.
	want(api, "kubernetes", Warn)
	want(api, "kubernetes.default", Warn)
	want(api, "kubernetes.default.svc", Warn)
	want(api, "kubernetes.default.svc."+spec.Kubernetes.Domain, Warn)
	want(api, "master."+v.cluster.ID, Warn)
	want(api, firstAddress(spec.Kubernetes.API.ClusterIPRange), Warn)
	want(etcd, spec.Etcd.Domain, Block)
	want(etcd, net.IPv4(127, 0, 0, 1).String(), Block)
	if len(items) > 0 {
		return failed(items, "names are missing").as(worst)
	}
	return held("%s and %s, and the names inside the cluster", spec.Kubernetes.API.Domain, spec.Etcd.Domain)
}
