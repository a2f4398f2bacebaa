package finalize

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/certs"
	"sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kubeproxy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// errNotRenewable means that the KubeadmControlPlane could not renew a kubeconfig, and would fail at every look at it.
var errNotRenewable = errors.New("nobody renews it")

// HandOverKubeconfig gives the kubeconfig with which Cluster API reaches the cluster to the KubeadmControlPlane, which renews it from then on. Until now it is the legacy platform's, with
// a certificate that nobody renews any more, in a Secret that counts as a user's own. A Secret's type cannot be changed, so this one is made anew with what it held, and one that a run
// was killed over is made by the KubeadmControlPlane (controlplane/kubeadm/reconcilers/kubeadmcontrolplane/helpers.go, reconcileKubeconfig).
func (f *Finalizer) HandOverKubeconfig(ctx context.Context) error {
	key := client.ObjectKey{Namespace: f.Result.Namespace, Name: secret.Name(f.Picture.ID, secret.Kubeconfig)}
	held, err := f.secret(ctx, key)
	if err != nil {
		return err
	}
	controlPlane, err := f.controlPlane(ctx)
	if err != nil {
		return err
	}
	if err := failure.Join(f.tellProxyEnd(ctx), f.tellMachineEnds(ctx)); err != nil || f.whyNotRenewed(held, controlPlane) == "" {
		return err
	}
	if held != nil && held.Type != clusterv1.ClusterSecretType {
		made, err := f.renewable(ctx, held)
		if errors.Is(err, errNotRenewable) {
			f.note("Secret %s stays as it is, and %s; put a kubeconfig into it that lasts, or Cluster API loses the cluster when this one ends", key, err)
			return nil
		}
		if err != nil {
			return err
		}
		if err := f.replace(ctx, held, made); err != nil {
			return err
		}
	}
	if err := f.renewed(ctx, key, controlPlane); err != nil {
		return err
	}
	return f.annotate(ctx, controlPlane, wokenAnnotation, nil)
}

// wakePause is how long the KubeadmControlPlane has before it is woken once more: it reads Secrets from a cache of its own and does not watch them, so it may look before it can see what is new.
const wakePause = 20 * time.Second

// renewed wakes the KubeadmControlPlane until it has taken the kubeconfig over and renewed it, for as long as the patience lasts.
func (f *Finalizer) renewed(parent context.Context, key client.ObjectKey, controlPlane *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(parent, f.Patience)
	defer cancel()
	for {
		if err := f.wakeObject(ctx, controlPlane); err != nil {
			return err
		}
		soon, over := context.WithTimeout(ctx, min(wakePause, f.Patience/4))
		err := f.awaitRenewed(soon, key, controlPlane)
		over()
		if ctx.Err() != nil || !errors.Is(err, kube.ErrNotInTime) {
			return err
		}
	}
}

// tellProxyEnd notes until when kube-proxy is known to the API by the legacy platform's certificate, which no controller of Cluster API has anything to do with, and whether it is known afterwards (decision 0005).
func (f *Finalizer) tellProxyEnd(ctx context.Context) error {
	files, err := f.secret(ctx, client.ObjectKey{Namespace: f.Result.Namespace, Name: f.Picture.ID + "-node-files"})
	if err != nil || files == nil {
		return err
	}
	certificate, err := certs.DecodeCertPEM(files.Data[translate.WorkerCertificate])
	if err != nil {
		return nil //nolint:nilerr // There is none, or one that nobody is known by.
	}
	var missing string
	account, err := kubeproxy.Account(ctx, f.Workload.Client)
	switch {
	case errors.Is(err, kubeproxy.ErrNoToken):
		missing = err.Error()
	case err != nil:
		return err
	case account == "":
		return nil // Somebody else carries Services.
	default:
		if missing, err = kubeproxy.Lacks(ctx, f.Workload.Client, account); err != nil {
			return err
		}
	}
	ends := certificate.NotAfter.UTC().Format(time.RFC3339)
	if missing != "" {
		f.note("kube-proxy on every node is known by the legacy workers' certificate until that ends at %s, and not from then on: %s; change that before (docs/runbook.md, control-plane/kube-proxy), for a binding that is missing: %s",
			ends, missing, kubeproxy.BindCommand(cmp.Or(account, translate.ProxyDaemonSet)))
		return nil
	}
	f.note("kube-proxy on every node is known by the legacy workers' certificate until that ends at %s, and by its ServiceAccount's token from then on", ends)
	return nil
}

// tellMachineEnds notes until when the certificates of control plane machines are valid: kubeadm makes them for a year. A new machine has new ones, and Cluster API makes one for an upgrade, when
// somebody asks for it, or when it is told to look at the certificates (spec.rollout.before). The plan does not tell it to: it would happen outside of any window.
func (f *Finalizer) tellMachineEnds(ctx context.Context) error {
	machines, err := adopt.List(ctx, f.Management.Client, clusterv1.GroupVersion.WithKind("Machine"), f.Result.Namespace)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(machines)) {
		labels := machines[name].GetLabels()
		if _, master := labels[clusterv1.MachineControlPlaneLabel]; !master || labels[clusterv1.ClusterNameLabel] != f.Picture.ID {
			continue
		}
		ends, known, err := unstructured.NestedString(machines[name].Object, "status", "certificatesExpiryDate")
		if err != nil || !known {
			continue
		}
		f.note("the certificates of control plane machine %s end at %s; a new machine has new ones, so upgrade before then, or roll out: clusterctl alpha rollout restart kubeadmcontrolplane/%s --namespace %s",
			name, ends, f.Picture.ID, f.Result.Namespace)
	}
	return nil
}

// secret reads a Secret; nil when there is none.
func (f *Finalizer) secret(ctx context.Context, key client.ObjectKey) (*corev1.Secret, error) {
	held := &corev1.Secret{}
	switch err := f.Management.Client.Get(ctx, key, held); {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // there may be none
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	return held, nil
}

func (f *Finalizer) controlPlane(ctx context.Context) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(controlplanev1.GroupVersion.WithKind("KubeadmControlPlane"))
	key := client.ObjectKey{Namespace: f.Result.Namespace, Name: f.Picture.ID}
	if err := f.Management.Client.Get(ctx, key, o); err != nil {
		return nil, fmt.Errorf("reading KubeadmControlPlane %s: %w", key, err)
	}
	return o, nil
}

// renewable is a kubeconfig's Secret as Cluster API makes them, with the address and the credentials of another. Cluster API finds the address by the cluster's name, and looks at certificates only.
func (f *Finalizer) renewable(ctx context.Context, held *corev1.Secret) (*corev1.Secret, error) {
	config, err := kube.ConfigFromSecret(held.Data[secret.KubeconfigDataName])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotRenewable, err)
	}
	if _, err := certs.DecodeCertPEM(config.CertData); err != nil {
		return nil, fmt.Errorf("%w: it has no client certificate", errNotRenewable)
	}
	if config.Insecure || config.ServerName != "" {
		return nil, fmt.Errorf("%w: it does not check the API server's certificate by the API's name, and one that Cluster API makes does", errNotRenewable)
	}
	if err := f.mustSign(ctx, client.ObjectKey{Namespace: held.Namespace, Name: secret.Name(f.Picture.ID, secret.ClusterCA)}); err != nil {
		return nil, err
	}
	user := f.Picture.ID + "-admin"
	place := user + "@" + f.Picture.ID
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{f.Picture.ID: {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}},
		Contexts:       map[string]*clientcmdapi.Context{place: {Cluster: f.Picture.ID, AuthInfo: user}},
		CurrentContext: place,
	})
	if err != nil {
		return nil, fmt.Errorf("writing the kubeconfig of Secret %s/%s anew: %w", held.Namespace, held.Name, err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: held.Namespace, Name: held.Name, Labels: map[string]string{clusterv1.ClusterNameLabel: f.Picture.ID}},
		Type:       clusterv1.ClusterSecretType,
		Data:       map[string][]byte{secret.KubeconfigDataName: data},
	}, nil
}

// mustSign makes sure that the cluster's CA can sign a certificate.
func (f *Finalizer) mustSign(ctx context.Context, key client.ObjectKey) error {
	ca, err := f.secret(ctx, key)
	if err != nil {
		return err
	}
	if ca == nil {
		return fmt.Errorf("%w: there is no Secret %s with the cluster's CA", errNotRenewable, key)
	}
	if _, err := certs.DecodeCertPEM(ca.Data[secret.TLSCrtDataName]); err != nil {
		return fmt.Errorf("%w: the cluster's CA in Secret %s is no certificate", errNotRenewable, key)
	}
	if signer, err := certs.DecodePrivateKeyPEM(ca.Data[secret.TLSKeyDataName]); err != nil || signer == nil {
		return fmt.Errorf("%w: the cluster's CA has no key in Secret %s", errNotRenewable, key)
	}
	return nil
}

// replace makes a Secret anew. Whoever asks in between finds none; Cluster API keeps the connection it has.
func (f *Finalizer) replace(ctx context.Context, held, made *corev1.Secret) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(made)
	if err != nil {
		return fmt.Errorf("making Secret %s/%s anew: %w", held.Namespace, held.Name, err)
	}
	o := &unstructured.Unstructured{Object: content}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	target := kube.TargetOf(o)
	target.UID = held.UID
	if err := f.Management.Writer.Delete(ctx, target, metav1.DeletePropagationBackground); err != nil {
		return err
	}
	if _, err := f.Management.Writer.Create(ctx, o); !apierrors.IsAlreadyExists(err) {
		return err // One that the KubeadmControlPlane has made meanwhile is as good.
	}
	return nil
}

// awaitRenewed waits until the KubeadmControlPlane has taken the kubeconfig over, and has renewed it where its certificate ends soon.
func (f *Finalizer) awaitRenewed(ctx context.Context, key client.ObjectKey, controlPlane *unstructured.Unstructured) error {
	var until time.Time
	scope := kube.Scope{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Secret"), Namespace: key.Namespace, Labels: client.MatchingLabels{clusterv1.ClusterNameLabel: f.Picture.ID},
	}
	err := f.Await(ctx, f.Management, scope, func(byName map[string]*unstructured.Unstructured) string {
		var held *corev1.Secret
		if o := byName[key.Name]; o != nil {
			held = &corev1.Secret{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, held); err != nil {
				return fmt.Sprintf("Secret %s to be readable: %s", key, err)
			}
		}
		missing := f.whyNotRenewed(held, controlPlane)
		if missing == "" {
			until = certificateEnd(held)
		}
		return missing
	})
	if err == nil {
		f.note("Secret %s is the KubeadmControlPlane's, which renews it; its certificate is valid until %s", key, until.UTC().Format(time.RFC3339))
	}
	return err
}

// whyNotRenewed says what a kubeconfig's Secret lacks to be one that the KubeadmControlPlane keeps.
func (f *Finalizer) whyNotRenewed(held *corev1.Secret, controlPlane *unstructured.Unstructured) string {
	const who = "; is the controller of kubeadm control planes running?"
	if held == nil {
		return fmt.Sprintf("KubeadmControlPlane/%s to make Secret/%s%s", controlPlane.GetName(), secret.Name(f.Picture.ID, secret.Kubeconfig), who)
	}
	if !metav1.IsControlledBy(held, controlPlane) {
		return fmt.Sprintf("KubeadmControlPlane/%s to take Secret/%s over%s", controlPlane.GetName(), held.Name, who)
	}
	if due, err := kubeconfig.NeedsClientCertRotation(held, certs.ClientCertificateRenewalDuration); err != nil || due {
		return fmt.Sprintf("KubeadmControlPlane/%s to renew the certificate in Secret/%s%s", controlPlane.GetName(), held.Name, who)
	}
	return ""
}

// certificateEnd is when the client certificate of a kubeconfig ends.
func certificateEnd(held *corev1.Secret) time.Time {
	config, err := kube.ConfigFromSecret(held.Data[secret.KubeconfigDataName])
	if err != nil {
		return time.Time{}
	}
	certificate, err := certs.DecodeCertPEM(config.CertData)
	if err != nil {
		return time.Time{}
	}
	return certificate.NotAfter
}
