package mctest_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mctest"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
)

const (
	// serverEnv makes the test binary the program of an image.
	serverEnv = "MCTEST_SERVER"
	image     = "lab.test/server"
	soon      = time.Minute
	often     = 100 * time.Millisecond
)

var cluster *mc.Cluster

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := labnet.Check(); err != nil {
		fmt.Fprintln(os.Stderr, "skipped:", err)
		return
	}
	os.Exit(mctest.Main(m, mc.Options{
		Hosts:  2,
		Images: map[string]mc.Image{image: {Program: self, Path: "/server", Env: map[string]string{serverEnv: "1"}}},
	}, func(c *mc.Cluster) { cluster = c }))
}

// serve says the pod's name, and asks others in its place.
func serve() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) })
	mux.HandleFunc("/ask", func(w http.ResponseWriter, r *http.Request) {
		answer, err := get(r.Context(), insecure(), r.URL.Query().Get("url"), r.Header.Get("Authorization"))
		if err != nil {
			answer = "error: " + err.Error()
		}
		_, _ = io.WriteString(w, answer)
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, "/var/run/secrets/kubernetes.io/serviceaccount/token")
	})
	secure := httptest.NewUnstartedServer(mux)
	if secure.Listener, err = net.Listen("tcp", ":8443"); err != nil {
		return err
	}
	secure.StartTLS()
	fmt.Println("serving as", name)
	return http.ListenAndServe(":8080", mux)
}

func insecure() *http.Client {
	return &http.Client{Timeout: soon, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
}

func get(ctx context.Context, client *http.Client, url, authorization string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // Read to its end.
	raw, err := io.ReadAll(resp.Body)
	return string(raw), err
}

// world is a namespace with a Deployment of two servers and a Service.
type world struct {
	t         *testing.T
	client    *kubernetes.Clientset
	namespace string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if cluster == nil {
		t.Skip("needs a cluster, and there is none with -short")
	}
	client, err := kubernetes.NewForConfig(cluster.Config())
	require.NoError(t, err)
	w := &world{t: t, client: client, namespace: strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))}
	if len(w.namespace) > 50 {
		w.namespace = w.namespace[:50]
	}
	_, err = client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}, metav1.CreateOptions{})
	require.NoError(t, err)
	labels := map[string]string{"app": "web"}
	_, err = client.AppsV1().Deployments(w.namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
						LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
					}},
					Containers: []corev1.Container{{Name: "server", Image: image + ":v1", ReadinessProbe: &corev1.Probe{
						PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}},
					}}},
				},
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().Services(w.namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}, {Name: "https", Port: 443, TargetPort: intstr.FromInt32(8443)},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = client.CoreV1().Namespaces().Delete(context.Background(), w.namespace, metav1.DeleteOptions{})
	})
	return w
}

// pods returns the two pods once they are ready.
func (w *world) pods() []corev1.Pod {
	w.t.Helper()
	var ready []corev1.Pod
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		list, err := w.client.CoreV1().Pods(w.namespace).List(w.t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		ready = nil
		for _, p := range list.Items {
			for _, x := range p.Status.Conditions {
				if x.Type == corev1.PodReady && x.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil {
					ready = append(ready, p)
				}
			}
		}
		assert.Equal(c, 2, len(ready)) //nolint:testifylint // Whole pods in a message are unreadable.
	}, soon, often)
	return ready
}

// from asks a pod to ask a URL.
func (w *world) from(pod corev1.Pod, what, authorization string) (string, error) {
	return get(w.t.Context(), insecure(), "http://"+pod.Status.PodIP+":8080/ask?url="+url.QueryEscape(what), authorization)
}

func TestPodsReachEachOtherAndThemselvesThroughTheirService(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pods := w.pods()
	require.NotEqual(t, pods[0].Spec.NodeName, pods[1].Spec.NodeName, "one on each host")
	for i, p := range pods {
		var hostNumber int
		_, err := fmt.Sscanf(p.Spec.NodeName, "host-%d", &hostNumber)
		require.NoError(t, err)
		_, podRange, err := net.ParseCIDR(labnet.PodCIDR(hostNumber))
		require.NoError(t, err)
		assert.True(t, podRange.Contains(net.ParseIP(p.Status.PodIP)), "%s of %s", p.Status.PodIP, p.Spec.NodeName)

		neighbour := pods[1-i]
		answer, err := w.from(p, "http://"+neighbour.Status.PodIP+":8080", "")
		require.NoError(t, err)
		assert.Equal(t, neighbour.Name, answer, "pod to pod")
	}
	service := "http://web." + w.namespace + ".svc." + labnet.ClusterDomain
	for _, p := range pods {
		seen := map[string]bool{}
		require.Eventually(t, func() bool {
			answer, err := w.from(p, service, "")
			if err != nil || strings.Contains(answer, "error") {
				t.Logf("from %s: %q, %v", p.Name, answer, err)
				return false
			}
			seen[answer] = true
			return seen[pods[0].Name] && seen[pods[1].Name]
		}, soon, often, "both pods answer %s, itself included", p.Name)
	}
	answer, err := get(t.Context(), insecure(), service, "")
	require.NoError(t, err, "the test is in the same network and knows the same names")
	assert.Contains(t, answer, "web-")
}

func TestPodsKnowTheAPIServerAndTheirAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pod := w.pods()[0]
	token, err := get(t.Context(), insecure(), "http://"+pod.Status.PodIP+":8080/token", "")
	require.NoError(t, err)

	answer, err := w.from(pod, "https://kubernetes.default.svc/apis/authentication.k8s.io/v1/selfsubjectreviews", "Bearer "+token)
	require.NoError(t, err)
	assert.NotContains(t, answer, "Unauthorized", "the token is accepted, whatever it may do")
	answer, err = w.from(pod, "https://kubernetes.default.svc/api/v1/namespaces/"+w.namespace+"/pods", "Bearer "+token)
	require.NoError(t, err)
	assert.Contains(t, answer, "system:serviceaccount:"+w.namespace+":default")

	answer, err = w.from(pod, "http://www.example.com", "")
	require.NoError(t, err)
	assert.Contains(t, answer, "no such host", "there is no world outside")
}

func TestLogsAreServedByTheHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pod := w.pods()[0]
	raw, err := w.client.CoreV1().Pods(w.namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "serving as "+pod.Name+"\n", string(raw))
}

func TestIngressPassesTLSThrough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pods := w.pods()
	host := w.namespace + "." + labnet.IngressDomain
	ingresses := w.client.NetworkingV1().Ingresses(w.namespace)
	_, err := ingresses.Create(t.Context(), &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{
			Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
				Path: "/", PathType: ptr.To(networkingv1.PathTypePrefix),
				Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
					Name: "web", Port: networkingv1.ServiceBackendPort{Number: 443},
				}},
			}}}},
		}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		i, err := ingresses.Get(t.Context(), "web", metav1.GetOptions{})
		require.NoError(c, err)
		assert.Equal(c, mc.IngressClass, ptr.Deref(i.Spec.IngressClassName, ""), "the default class")
		require.Len(c, i.Status.LoadBalancer.Ingress, 1)
		assert.Equal(c, labnet.IngressIP, i.Status.LoadBalancer.Ingress[0].IP)
		answer, err := w.from(pods[0], "https://"+host, "")
		require.NoError(c, err)
		assert.Contains(c, answer, "web-")
	}, soon, often)
}

func TestPodsOfADeadHostAreGoneAndComeBack(t *testing.T) {
	w := newWorld(t)
	pods := w.pods()
	var victim corev1.Pod
	for _, p := range pods {
		if p.Spec.NodeName == mc.HostName(2) {
			victim = p
		}
	}
	address := "http://" + victim.Status.PodIP + ":8080"
	_, err := get(t.Context(), insecure(), address, "")
	require.NoError(t, err)

	require.NoError(t, cluster.KillComponent(t.Context(), mc.HostName(2)))

	assert.Eventually(t, func() bool {
		brief := insecure()
		brief.Timeout = 5 * time.Second
		_, err := get(t.Context(), brief, address, "")
		return err != nil
	}, soon, often, "a machine without power runs nothing")
	require.NoError(t, cluster.StartComponent(t.Context(), mc.HostName(2)))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		p, err := w.client.CoreV1().Pods(w.namespace).Get(t.Context(), victim.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		require.NoError(c, err)
		raw, err := json.Marshal(p.Status)
		require.NoError(c, err)
		assert.NotEqual(c, victim.Status.ContainerStatuses[0].ContainerID, p.Status.ContainerStatuses[0].ContainerID, string(raw))
	}, soon, often)
	w.pods()
}
