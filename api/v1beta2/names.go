package v1beta2

// APIServiceName is the name of the Service and the Ingress through which a cluster's API is reached, WorkersServiceName that of the Service that leads to its workers, if there
// is one. API servers before Kubernetes 1.36 take no Service whose name does not begin with a letter (RelaxedServiceNameValidation, pkg/features/kube_features.go), and ids of
// legacy clusters may begin with a digit.
func APIServiceName(cluster string) string { return lettered(cluster) + "-control-plane" }

// WorkersServiceName is described at [APIServiceName].
func WorkersServiceName(cluster string) string { return lettered(cluster) + "-workers" }

func lettered(cluster string) string {
	if cluster != "" && (cluster[0] < 'a' || cluster[0] > 'z') {
		return "kvm-" + cluster
	}
	return cluster
}
