package finalize

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/certs"
	"sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
)

// authority signs client certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	certPEM     []byte
	keyPEM      []byte
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	template.Raw = der
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	return &authority{template, key, pemOf("CERTIFICATE", der), pemOf("EC PRIVATE KEY", keyDER)}
}

// legacyKubeconfig has the names that the legacy platform gives, and a certificate that ends.
func (a *authority) legacyKubeconfig(t *testing.T, ends time.Duration) []byte {
	t.Helper()
	return a.kubeconfigFor(t, ends, "")
}

// kubeconfigFor has the API server's certificate checked by another name than the address's.
func (a *authority) kubeconfigFor(t *testing.T, ends time.Duration, server string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "api"}, NotAfter: time.Now().Add(ends)}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	return written(t, &clientcmdapi.AuthInfo{ClientCertificateData: pemOf("CERTIFICATE", der), ClientKeyData: pemOf("EC PRIVATE KEY", keyDER)}, a.certPEM, server)
}

func written(t *testing.T, user *clientcmdapi.AuthInfo, ca []byte, server string) []byte {
	t.Helper()
	raw, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"giantswarm": {Server: "https://api.al9qy.example.test", TLSServerName: server, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"ci-user": user},
		Contexts:       map[string]*clientcmdapi.Context{"legacy": {Cluster: "giantswarm", AuthInfo: "ci-user"}},
		CurrentContext: "legacy",
	})
	require.NoError(t, err)
	return raw
}

// keeper does to a kubeconfig's Secret what the real KubeadmControlPlane does when it is woken, with Cluster API's own functions. lab/adoption has the real one do it.
func (x *scene) keeper(t *testing.T) func(context.Context, client.WithWatch) error {
	t.Helper()
	return func(ctx context.Context, c client.WithWatch) error {
		kcp := &controlplanev1.KubeadmControlPlane{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: target, Name: id}, kcp); err != nil {
			return err
		}
		owner := *metav1.NewControllerRef(kcp, controlplanev1.GroupVersion.WithKind("KubeadmControlPlane"))
		held := &corev1.Secret{}
		err := c.Get(ctx, client.ObjectKey{Namespace: target, Name: id + "-kubeconfig"}, held)
		if apierrors.IsNotFound(err) {
			return kubeconfig.CreateSecretWithOwner(ctx, c, client.ObjectKey{Namespace: target, Name: id}, "api.al9qy.example.test:443", owner)
		}
		if err != nil || held.Type != clusterv1.ClusterSecretType {
			return err
		}
		held.OwnerReferences = []metav1.OwnerReference{owner}
		if err := c.Update(ctx, held); err != nil {
			return err
		}
		due, err := kubeconfig.NeedsClientCertRotation(held, certs.ClientCertificateRenewalDuration)
		if err != nil || !due {
			return err
		}
		return kubeconfig.RegenerateSecret(ctx, c, held)
	}
}

// afterTheFirst sees nothing when it is woken first, as one whose cache is late.
func afterTheFirst(woken func(context.Context, client.WithWatch) error) func(context.Context, client.WithWatch) error {
	looks := 0
	return func(ctx context.Context, c client.WithWatch) error {
		if looks++; looks == 1 {
			return nil
		}
		return woken(ctx, c)
	}
}

func TestTheControlPlaneRenewsTheKubeconfig(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	const month = 30 * 24 * time.Hour
	for name, test := range map[string]struct {
		kubeconfig []byte
		caKey      []byte
		asleep     bool
		early      bool
		says       string
		// stays says why the Secret stays as it was.
		stays string
	}{
		"one that ends soon":                 {kubeconfig: ca.legacyKubeconfig(t, month), caKey: ca.keyPEM},
		"one that ends late":                 {kubeconfig: ca.legacyKubeconfig(t, 9*month), caKey: ca.keyPEM},
		"a run was killed before it made it": {caKey: ca.keyPEM},
		"no client certificate":              {kubeconfig: written(t, &clientcmdapi.AuthInfo{Token: "s3cr3t"}, ca.certPEM, ""), caKey: ca.keyPEM, stays: "nobody renews it: it has no client certificate"},
		"not a kubeconfig":                   {kubeconfig: []byte("s3cr3t"), caKey: ca.keyPEM, stays: "nobody renews it: reading the cluster's kubeconfig: "},
		"a CA without its key":               {kubeconfig: ca.legacyKubeconfig(t, month), stays: "nobody renews it: the cluster's CA has no key in Secret org-acme/al9qy-ca"},
		"another name is checked":            {kubeconfig: ca.kubeconfigFor(t, month, "master"), caKey: ca.keyPEM, stays: "nobody renews it: it does not check the API server's certificate by the API's name"},
		"a CA with another key":              {kubeconfig: ca.legacyKubeconfig(t, month), caKey: []byte("s3cr3t"), stays: "nobody renews it: the cluster's CA has no key in Secret org-acme/al9qy-ca"},
		"the first look comes too early":     {kubeconfig: ca.legacyKubeconfig(t, month), caKey: ca.keyPEM, early: true},
		"nobody takes it over":               {kubeconfig: ca.legacyKubeconfig(t, month), caKey: ca.keyPEM, asleep: true, says: "waiting for KubeadmControlPlane/al9qy to take Secret/al9qy-kubeconfig over"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newScene(t)
			if !test.asleep {
				x.woken = x.keeper(t)
				if test.early {
					x.woken = afterTheFirst(x.woken)
				}
			}
			marks := map[string]string{clusterv1.ClusterNameLabel: id}
			require.NoError(t, x.api.Create(t.Context(), &controlplanev1.KubeadmControlPlane{ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: id, UID: "kcp"}}))
			require.NoError(t, x.api.Create(t.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: id + "-ca", UID: "ca", Labels: marks}, Data: map[string][]byte{"tls.crt": ca.certPEM, "tls.key": test.caKey},
			}))
			if test.kubeconfig != nil {
				require.NoError(t, x.api.Create(t.Context(), &corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: id + "-kubeconfig", UID: "legacy", Labels: marks}, Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"value": test.kubeconfig},
				}))
			}
			require.NoError(t, x.api.Create(t.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: id + "-node-files", UID: "files", Labels: marks}, Data: map[string][]byte{"worker-crt.pem": ca.certPEM},
			}))
			for name, status := range map[string]clusterv1.MachineStatus{"al9qy-abcde": {CertificatesExpiryDate: metav1.Date(2027, 3, 4, 5, 6, 7, 0, time.UTC)}, "al9qy-young": {}} {
				require.NoError(t, x.api.Create(t.Context(), &clusterv1.Machine{
					ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: id, clusterv1.MachineControlPlaneLabel: ""}}, Status: status,
				}))
			}
			x.Workload = proxied(t, true)
			err := x.HandOverKubeconfig(t.Context())
			if test.says != "" {
				require.ErrorContains(t, err, test.says)
				return
			}
			require.NoError(t, err)
			held, err := x.secret(t.Context(), client.ObjectKey{Namespace: target, Name: id + "-kubeconfig"})
			require.NoError(t, err)
			said := strings.Join(x.notes, "\n")
			assert.NotContains(t, said, "s3cr3t")
			assert.Contains(t, said, "kube-proxy on every node is known by the legacy workers' certificate until that ends at ")
			assert.Contains(t, said, "the certificates of control plane machine al9qy-abcde end at 2027-03-04T05:06:07Z; a new machine has new ones")
			assert.NotContains(t, said, "al9qy-young")
			if test.stays != "" {
				assert.EqualValues(t, "legacy", held.UID)
				assert.Equal(t, test.kubeconfig, held.Data["value"])
				assert.Contains(t, said, test.stays)
				return
			}
			assert.Contains(t, said, "Secret org-acme/al9qy-kubeconfig is the KubeadmControlPlane's, which renews it; its certificate is valid until ")
			assert.Equal(t, clusterv1.ClusterSecretType, held.Type)
			due, err := kubeconfig.NeedsClientCertRotation(held, certs.ClientCertificateRenewalDuration)
			require.NoError(t, err)
			assert.False(t, due)
			config, err := clientcmd.Load(held.Data["value"])
			require.NoError(t, err)
			assert.Contains(t, config.Clusters["al9qy"].Server, "https://api.al9qy.example.test")
			assert.Equal(t, ca.certPEM, config.Clusters["al9qy"].CertificateAuthorityData)
			kcp, err := x.controlPlane(t.Context())
			require.NoError(t, err)
			assert.Empty(t, kcp.GetAnnotations(), "it is not marked any more")
			wrote := len(x.writes)
			require.NoError(t, x.HandOverKubeconfig(t.Context()))
			assert.Len(t, x.writes, wrote, "once more changes nothing")
		})
	}
}

// proxied is a workload cluster with a kube-proxy, which may do what one does or not.
func proxied(t *testing.T, allowed bool, objects ...client.Object) adopt.Side {
	t.Helper()
	if objects == nil {
		objects = []client.Object{
			&appsv1.DaemonSet{
				ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-proxy"},
				Spec:       appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{ServiceAccountName: "kube-proxy"}}},
			},
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-proxy"}},
		}
	}
	return adopt.Side{Client: fake.NewClientBuilder().WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if review, ok := o.(*authorizationv1.SubjectAccessReview); ok {
				review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: allowed, Reason: "as the test says"}
				return nil
			}
			return c.Create(ctx, o, opts...)
		},
	}).Build()}
}

func TestWhatKubeProxyIsKnownByAfterwardsIsLookedAt(t *testing.T) {
	t.Parallel()
	const known, unknown = "by its ServiceAccount's token from then on", "and not from then on: "
	for name, test := range map[string]struct {
		inside adopt.Side
		says   string
	}{
		"it may":         {proxied(t, true), known},
		"nobody said so": {proxied(t, false), unknown + "system:serviceaccount:kube-system:kube-proxy may not list services (as the test says); change that before (docs/runbook.md, control-plane/kube-proxy), for a binding that is missing: kubectl create clusterrolebinding "},
		"no token": {proxied(t, true, &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-proxy"},
			Spec:       appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{ServiceAccountName: "kube-proxy", AutomountServiceAccountToken: new(false)}}},
		}), unknown + "kube-proxy's pods get no token"},
		"no kube-proxy": {proxied(t, true, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newScene(t)
			x.Workload = test.inside
			require.NoError(t, x.api.Create(t.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: id + "-node-files"}, Data: map[string][]byte{"worker-crt.pem": newAuthority(t).certPEM},
			}))
			require.NoError(t, x.tellProxyEnd(t.Context()))
			if test.says == "" {
				assert.Empty(t, x.notes)
				return
			}
			require.Len(t, x.notes, 1)
			assert.Contains(t, x.notes[0], test.says)
		})
	}
}
