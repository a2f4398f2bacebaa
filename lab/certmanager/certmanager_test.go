package certmanager_test

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/certmanager"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
)

const limit = 90 * time.Second

// certificate is what a provider's components ask of cert-manager.
const certificate = `
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: selfsigned, namespace: default}
spec: {selfSigned: {}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: serving, namespace: default}
spec:
  dnsNames: [webhook.default.svc]
  issuerRef: {kind: Issuer, name: selfsigned}
  secretName: serving-cert
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: injected, annotations: {cert-manager.io/inject-ca-from: default/serving}}
webhooks:
- name: never.called.example
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {name: webhook, namespace: default}}
  rules: [{apiGroups: [never.example], apiVersions: [v1], operations: [CREATE], resources: [nothing]}]
`

// The programs are compiled here out of upstream's packages, so a test sees them work together: without pods, and so without the
// webhook between API server and objects.
func TestCertificate(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a management cluster")
	}
	b, err := builder.New(builder.Options{Out: os.Stderr})
	require.NoError(t, err)
	assets, err := b.Ensure(t.Context(), append(certmanager.Programs(), builder.CertManagerFiles)...)
	require.NoError(t, err)
	cluster, err := mc.Start(t.Context(), mc.Options{Parts: mc.ControllerManager, CRDDirs: []string{filepath.Join(assets[builder.CertManagerFiles], "crds")}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, cluster.Stop(context.Background())) })

	for _, name := range []string{builder.CertManagerController, builder.CertManagerCAInjector} {
		require.NoError(t, cluster.Run(t.Context(), mc.Process{
			Name: name, Version: builder.CertManagerVersion, Argv: []string{assets[name]}, Env: []string{"KUBECONFIG=" + cluster.KubeconfigPath()},
		}))
	}
	objects, err := manifest.Parse([]byte(certificate))
	require.NoError(t, err)
	require.NoError(t, manifest.Ensure(t.Context(), cluster.Client(), objects))

	var ca string
	eventually(t, "the Secret is issued", func(ctx context.Context) bool {
		secret := &unstructured.Unstructured{}
		secret.SetAPIVersion("v1")
		secret.SetKind("Secret")
		if cluster.Client().Get(ctx, client.ObjectKey{Namespace: "default", Name: "serving-cert"}, secret) != nil {
			return false
		}
		ca, _, err = unstructured.NestedString(secret.Object, "data", "ca.crt")
		return err == nil && ca != ""
	})
	pem, err := base64.StdEncoding.DecodeString(ca)
	require.NoError(t, err)
	assert.Contains(t, string(pem), "BEGIN CERTIFICATE")
	eventually(t, "its authority is in the webhook configuration", func(ctx context.Context) bool {
		hook := &unstructured.Unstructured{}
		hook.SetAPIVersion("admissionregistration.k8s.io/v1")
		hook.SetKind("ValidatingWebhookConfiguration")
		if cluster.Client().Get(ctx, client.ObjectKey{Name: "injected"}, hook) != nil {
			return false
		}
		hooks, _, err := unstructured.NestedSlice(hook.Object, "webhooks")
		if err != nil || len(hooks) != 1 {
			return false
		}
		found, _, err := unstructured.NestedString(hooks[0].(map[string]any), "clientConfig", "caBundle")
		return err == nil && found == ca
	})
}

func eventually(t *testing.T, what string, met func(context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) { return met(ctx), nil })
	require.NoError(t, err, what)
}

func TestManifestNamesTheImagesOfTheVersion(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "crds"), 0o700))
	_, err := certmanager.Manifest(builder.Assets{builder.CertManagerFiles: dir})
	require.ErrorContains(t, err, "none in", "a manifest without CRDs would install nothing that works")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "crds", "one.yaml"), []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: stand-in}\n"), 0o600))
	raw, err := certmanager.Manifest(builder.Assets{builder.CertManagerFiles: dir})
	require.NoError(t, err)
	objects, err := manifest.Parse(raw)
	require.NoError(t, err)
	images := map[string]bool{}
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		require.NoError(t, err)
		images[containers[0].(map[string]any)["image"].(string)] = true
	}
	for _, name := range certmanager.Programs() {
		assert.True(t, images["quay.io/jetstack/"+name+":"+builder.CertManagerVersion], name)
	}
}
