package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// PodDialer opens connections to ports of pods, through the API server and the pod's kubelet, as kubectl port-forward does. It speaks SPDY, which all versions of both understand.
func PodDialer(config *rest.Config) func(ctx context.Context, namespace, pod string, port int) (net.Conn, error) {
	return func(ctx context.Context, namespace, pod string, port int) (net.Conn, error) {
		conn, err := dialPod(ctx, config, namespace, pod, port)
		if err != nil {
			return nil, fmt.Errorf("connecting to port %d of pod %s/%s: %w", port, namespace, pod, err)
		}
		return conn, nil
	}
}

func dialPod(ctx context.Context, config *rest.Config, namespace, pod string, port int) (net.Conn, error) {
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	where := base.JoinPath("api", "v1", "namespaces", namespace, "pods", pod, "portforward")
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, where)
	ending, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:" + strconv.Itoa(port)}, ending, ready, io.Discard, io.Discard)
	if err != nil {
		return nil, err
	}
	end := sync.OnceFunc(func() { close(ending) })
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		return nil, err
	case <-ctx.Done():
		end()
		return nil, ctx.Err()
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		end()
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))))
	if err != nil {
		end()
		return nil, err
	}
	return &podConn{Conn: conn, end: end}, nil
}

// podConn takes the way to its pod down when it is closed.
type podConn struct {
	net.Conn

	end func()
}

func (c *podConn) Close() error {
	defer c.end()
	return c.Conn.Close()
}
