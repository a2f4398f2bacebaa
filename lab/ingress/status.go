package ingress

import (
	"context"
	"fmt"
	"slices"

	"github.com/sirupsen/logrus"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Publisher writes the ingress's address into the status of Ingresses, where
// people and external DNS look for it.
type Publisher struct {
	client kubernetes.Interface
	routes *Routes
	ip     string
	log    logrus.FieldLogger
	queue  workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

// NewPublisher watches the Ingresses of routes.
func NewPublisher(client kubernetes.Interface, routes *Routes, ip string, log logrus.FieldLogger) (*Publisher, error) {
	p := &Publisher{
		client: client, routes: routes, ip: ip, log: log,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()),
	}
	enqueue := func(obj any) {
		if ingress, ok := obj.(*networkingv1.Ingress); ok && routes.Ours(ingress) {
			p.queue.Add(cache.MetaObjectToName(ingress))
		}
	}
	_, err := routes.ingresses.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, obj any) { enqueue(obj) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching Ingresses: %w", err)
	}
	return p, nil
}

// Run publishes until ctx ends.
func (p *Publisher) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, p.queue.ShutDown)
	defer stop()
	for {
		name, shutdown := p.queue.Get()
		if shutdown {
			return
		}
		if err := p.publish(ctx, name); err != nil {
			p.log.WithError(err).Warn("publishing the address failed, trying again")
			p.queue.AddRateLimited(name)
		} else {
			p.queue.Forget(name)
		}
		p.queue.Done(name)
	}
}

func (p *Publisher) publish(ctx context.Context, name cache.ObjectName) error {
	obj, found, err := p.routes.ingresses.GetIndexer().GetByKey(name.String())
	if err != nil || !found {
		return err
	}
	ingress, ok := obj.(*networkingv1.Ingress)
	want := []networkingv1.IngressLoadBalancerIngress{{IP: p.ip}}
	if !ok || slices.EqualFunc(ingress.Status.LoadBalancer.Ingress, want, func(a, b networkingv1.IngressLoadBalancerIngress) bool {
		return a.IP == b.IP && a.Hostname == b.Hostname
	}) {
		return nil
	}
	ingress = ingress.DeepCopy()
	ingress.Status.LoadBalancer.Ingress = want
	_, err = p.client.NetworkingV1().Ingresses(name.Namespace).UpdateStatus(ctx, ingress, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing the status of Ingress %s: %w", name, err)
	}
	return nil
}
