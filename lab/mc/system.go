package mc

import (
	"context"
	"fmt"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
)

// IngressClass is the class of Ingresses that the lab's ingress serves. It is
// the default class.
const IngressClass = "lab"

// Users of the lab's own programs.
const (
	userDNS     = "lab:coredns"
	userIngress = "lab:ingress"
)

// installSystem creates what a cluster with hosts has in its system namespace:
// rights of the lab's programs, the Service of the cluster DNS, the ingress
// class.
func (c *Cluster) installSystem(ctx context.Context) error {
	objects, err := manifest.Parse(fmt.Appendf(nil, systemObjects,
		userDNS, userIngress, IngressClass, labnet.ClusterDNS, labnet.Gateway))
	if err != nil {
		return err
	}
	// The API server makes the namespace some time after it is ready.
	err = c.poll(ctx, nil, func(ctx context.Context) error { return c.exists(ctx, "v1", "Namespace", "", "kube-system") })
	if err != nil {
		return fmt.Errorf("waiting for the system namespace: %w", err)
	}
	return manifest.Ensure(ctx, c.client, objects)
}

// systemObjects: hosts are nodes for the node authorizer, but list and watch
// without naming objects, which it does not allow. They also provision local
// volumes, which is somebody else's task in most clusters.
const systemObjects = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "lab:coredns"}
rules:
- {apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "lab:coredns"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "lab:coredns"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]q}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "lab:ingress"}
rules:
- {apiGroups: [""], resources: [services], verbs: [get, list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
- {apiGroups: [networking.k8s.io], resources: [ingresses, ingressclasses], verbs: [get, list, watch]}
- {apiGroups: [networking.k8s.io], resources: [ingresses/status], verbs: [update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "lab:ingress"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "lab:ingress"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[2]q}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "lab:host"}
rules:
- apiGroups: [""]
  resources: [configmaps, nodes, persistentvolumeclaims, persistentvolumes, pods, secrets, serviceaccounts, services]
  verbs: [get, list, watch]
- {apiGroups: ["", events.k8s.io], resources: [events], verbs: [create, patch, update]}
- {apiGroups: [""], resources: [persistentvolumes], verbs: [create, delete, patch, update]}
- {apiGroups: [storage.k8s.io], resources: [storageclasses], verbs: [create, get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "lab:host"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "lab:host"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}]
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata:
  name: %[3]s
  annotations: {ingressclass.kubernetes.io/is-default-class: "true"}
spec: {controller: lab.giantswarm.io/sni-passthrough}
---
apiVersion: v1
kind: Service
metadata:
  name: kube-dns
  namespace: kube-system
  labels: {k8s-app: kube-dns, kubernetes.io/name: CoreDNS}
spec:
  clusterIP: %[4]s
  ports:
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, protocol: TCP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: kube-dns-lab
  namespace: kube-system
  labels: {kubernetes.io/service-name: kube-dns, endpointslice.kubernetes.io/managed-by: lab}
addressType: IPv4
ports:
- {name: dns, port: 53, protocol: UDP}
- {name: dns-tcp, port: 53, protocol: TCP}
endpoints: [{addresses: [%[5]s]}]
`
