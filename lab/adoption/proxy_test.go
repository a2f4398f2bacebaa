package adoption

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/certtest"
)

// assertProxiesAreKnown asks the API server what a kube-proxy asks it, with the kubeconfig that new nodes have, after the certificate in it has ended.
func (x *takeover) assertProxiesAreKnown() {
	x.Helper()
	require.NoError(x, x.inside.Get(x.Context(), client.ObjectKey{Name: "kubeadm:node-proxier"}, &rbacv1.ClusterRoleBinding{}), "nothing else lets kube-proxy's ServiceAccount do anything")
	files := &corev1.Secret{}
	require.NoError(x, x.management.Get(x.Context(), client.ObjectKey{Namespace: x.o.c.Namespace, Name: x.o.c.ID + "-node-files"}, files))
	over, err := certtest.EndAt(time.Now().Add(-time.Minute), files.Data[translate.WorkerCertificate], x.o.c.CACert, x.o.c.CAKey)
	require.NoError(x, err)

	of := x.kcp().Spec.KubeadmConfigSpec.Files
	i := slices.IndexFunc(of, func(f bootstrapv1.File) bool { return f.Path == "/etc/kubernetes/config/proxy-kubeconfig.yaml" })
	require.GreaterOrEqual(x, i, 0)
	held, err := clientcmd.Load([]byte(of[i].Content))
	require.NoError(x, err)
	known := x.o.c.Inside(x.T, "looker", "system:masters")
	looker, err := kubernetes.NewForConfig(known)
	require.NoError(x, err)
	token, err := looker.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(x.Context(), "kube-proxy", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(x, err)

	dir := x.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(x, os.WriteFile(path, content, 0o600))
		return path
	}
	for _, c := range held.Clusters {
		c.CertificateAuthority = file("ca", x.o.c.CACert)
	}
	for _, user := range held.AuthInfos {
		assert.Equal(x, "/var/run/secrets/kubernetes.io/serviceaccount/token", user.TokenFile)
		user.ClientCertificate, user.ClientKey, user.TokenFile = file("crt", over), file("key", files.Data["worker-key.pem"]), file("token", []byte(token.Status.Token))
	}
	ask := func() error {
		config, err := clientcmd.NewDefaultClientConfig(*held, nil).ClientConfig()
		require.NoError(x, err)
		config.Dial = known.Dial
		proxy, err := kubernetes.NewForConfig(config)
		require.NoError(x, err)
		if _, err := proxy.CoreV1().Services("").List(x.Context(), metav1.ListOptions{}); err != nil {
			return err
		}
		_, err = proxy.DiscoveryV1().EndpointSlices("").List(x.Context(), metav1.ListOptions{})
		return err
	}
	require.NoError(x, ask())
	for _, user := range held.AuthInfos {
		user.TokenFile = ""
	}
	require.True(x, apierrors.IsUnauthorized(ask()), "the certificate alone is over")
}
