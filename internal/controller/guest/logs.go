package guest

import (
	"context"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// PodLogs opens logs of containers.
type PodLogs interface {
	// Follow streams a container's log, from the given time on or from its beginning, until the container ends or ctx does.
	Follow(ctx context.Context, pod client.ObjectKey, container string, since time.Time) (io.ReadCloser, error)
}

// NewPodLogs reads logs through the API server.
func NewPodLogs(clientset kubernetes.Interface) PodLogs { return &podLogs{clientset: clientset} }

type podLogs struct{ clientset kubernetes.Interface }

// Follow opens the stream.
func (l *podLogs) Follow(ctx context.Context, pod client.ObjectKey, container string, since time.Time) (io.ReadCloser, error) {
	options := &corev1.PodLogOptions{Container: container, Follow: true}
	if !since.IsZero() {
		options.SinceTime = &metav1.Time{Time: since}
	}
	stream, err := l.clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("following the log of pod %s: %w", pod, err)
	}
	return stream, nil
}
