package migrationtest

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/certtest"
)

// ForeignAnnotation counts what [Cluster.ForeignWriter] wrote to a Deployment.
const ForeignAnnotation = "lab.giantswarm.io/foreign-writes"

// ForeignUser is the account of [Cluster.ForeignWriter].
const ForeignUser = "system:serviceaccount:giantswarm:kvm-operator"

// Foreign is a second writer at work.
type Foreign struct {
	writes atomic.Int64
	end    func()
}

// Writes is how often it changed or re-created a Deployment.
func (f *Foreign) Writes() int { return int(f.writes.Load()) }

// Stop ends it and waits for its last write.
func (f *Foreign) Stop() { f.end() }

// ForeignWriter lets somebody write to the cluster's Deployments as a legacy
// operator would that was not silenced: every now and then it changes an
// annotation of each, and it creates again what is gone, as it was when the
// writer began. Pod templates stay as they are, so no VM ends because of it. It
// ends with the test.
func (c *Cluster) ForeignWriter(tb testing.TB, every time.Duration) *Foreign {
	tb.Helper()
	config := c.world.Management.As(tb, ForeignUser, "system:masters")
	config.UserAgent = "kvm-operator/3.18.6"
	full, err := kubernetes.NewForConfig(config)
	require.NoError(tb, err)
	list, err := full.AppsV1().Deployments(c.ID).List(tb.Context(), metav1.ListOptions{})
	require.NoError(tb, err)
	require.NotEmpty(tb, list.Items, "there is nothing to write to")

	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	f := &Foreign{}
	var running sync.WaitGroup
	var once sync.Once
	f.end = func() {
		once.Do(func() {
			cancel()
			running.Wait()
		})
	}
	tb.Cleanup(f.end)
	running.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			for i := range list.Items {
				if ctx.Err() != nil {
					return
				}
				// A write that has begun is finished: one that is given up may have been done all the same, and would not be counted.
				// A real operator, too, logs what fails and comes back.
				if err := f.write(context.WithoutCancel(ctx), full, &list.Items[i]); err == nil {
					f.writes.Add(1)
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return f
}

func (f *Foreign) write(ctx context.Context, full kubernetes.Interface, as *appsv1.Deployment) error {
	deployments := full.AppsV1().Deployments(as.Namespace)
	live, err := deployments.Get(ctx, as.Name, metav1.GetOptions{})
	count := strconv.FormatInt(f.writes.Load()+1, 10)
	if apierrors.IsNotFound(err) {
		live = as.DeepCopy()
		live.UID, live.ResourceVersion = "", ""
		metav1.SetMetaDataAnnotation(&live.ObjectMeta, ForeignAnnotation, count)
		_, err = deployments.Create(ctx, live, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	metav1.SetMetaDataAnnotation(&live.ObjectMeta, ForeignAnnotation, count)
	_, err = deployments.Update(ctx, live, metav1.UpdateOptions{})
	return err
}

// ExpireKubeconfig lets the client certificate in the cluster's kubeconfig run
// out, in the legacy Secret and in Cluster API's, as far as they exist. It is
// valid again when the returned function is called, at the latest with the end
// of the test. Who is connected already stays so: servers look at certificates
// when a connection begins.
func (c *Cluster) ExpireKubeconfig(tb testing.TB) (restore func()) {
	tb.Helper()
	return c.EndKubeconfig(tb, time.Now().Add(-time.Minute))
}

// EndKubeconfig is ExpireKubeconfig for another time than a minute ago.
func (c *Cluster) EndKubeconfig(tb testing.TB, ends time.Time) (restore func()) {
	tb.Helper()
	var undo []func()
	for key, field := range map[client.ObjectKey]string{
		{Namespace: c.ID, Name: c.ID + "-kubeconfig"}: "kubeConfig", {Namespace: c.Namespace, Name: c.ID + "-kubeconfig"}: "value",
	} {
		secret := &corev1.Secret{}
		err := c.world.Client.Get(tb.Context(), key, secret)
		if apierrors.IsNotFound(err) {
			continue
		}
		require.NoError(tb, err)
		valid := secret.Data[field]
		config, err := clientcmd.Load(valid)
		require.NoError(tb, err)
		for _, user := range config.AuthInfos {
			user.ClientCertificateData, err = certtest.EndAt(ends, user.ClientCertificateData, c.CACert, c.CAKey)
			require.NoError(tb, err)
		}
		expired, err := clientcmd.Write(*config)
		require.NoError(tb, err)
		require.NoError(tb, c.patchSecret(tb.Context(), secret, field, expired))
		undo = append(undo, func() {
			if err := c.patchSecret(context.Background(), secret, field, valid); client.IgnoreNotFound(err) != nil {
				tb.Errorf("making the kubeconfig valid again: %v", err)
			}
		})
	}
	require.NotEmpty(tb, undo, "there is no kubeconfig")
	var once sync.Once
	restore = func() {
		once.Do(func() {
			for _, do := range undo {
				do()
			}
		})
	}
	tb.Cleanup(restore)
	return restore
}

func (c *Cluster) patchSecret(ctx context.Context, secret *corev1.Secret, field string, value []byte) error {
	patch := fmt.Sprintf(`{"data":{%q:%q}}`, field, base64.StdEncoding.EncodeToString(value))
	return c.world.Client.Patch(ctx, secret.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch)))
}
