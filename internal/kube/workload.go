package kube

import (
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ConfigFromSecret reads a kubeconfig that came out of a cluster. Such text is data, not configuration: whoever may write the Secret
// must not get programs started or files read on the machine of whoever reads it. So only addresses and inline credentials count.
func ConfigFromSecret(kubeconfig []byte) (*rest.Config, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		// The reason may quote the text, which holds a key.
		return nil, errors.New("reading the cluster's kubeconfig: it does not parse")
	}
	current, ok := config.Contexts[config.CurrentContext]
	if !ok || current == nil {
		return nil, fmt.Errorf("reading the cluster's kubeconfig: it has no context %q", config.CurrentContext)
	}
	cluster, user := config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
	switch {
	case cluster == nil:
		return nil, fmt.Errorf("reading the cluster's kubeconfig: it has no cluster %q", current.Cluster)
	case user == nil:
		return nil, fmt.Errorf("reading the cluster's kubeconfig: it has no user %q", current.AuthInfo)
	case user.Exec != nil, user.AuthProvider != nil:
		return nil, errors.New("reading the cluster's kubeconfig: it wants to start a program; name a kubeconfig of your own with --workload-kubeconfig")
	case user.ClientCertificate != "", user.ClientKey != "", user.TokenFile != "", cluster.CertificateAuthority != "":
		return nil, errors.New("reading the cluster's kubeconfig: it refers to files; name a kubeconfig of your own with --workload-kubeconfig")
	case cluster.ProxyURL != "":
		return nil, errors.New("reading the cluster's kubeconfig: it names a proxy; name a kubeconfig of your own with --workload-kubeconfig")
	}
	rest, err := clientcmd.NewNonInteractiveClientConfig(*config, config.CurrentContext, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, errors.New("reading the cluster's kubeconfig: it is not usable")
	}
	return rest, nil
}
