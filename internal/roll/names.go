package roll

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// The Service by which pods ask the API server (pkg/controlplane/controller/kubernetesservice of Kubernetes).
const (
	apiService     = "kubernetes"
	apiServiceName = apiService + "." + metav1.NamespaceDefault + ".svc"
)

// compareNames looks whether those who ask the old API server by a name will take the new one's certificate for it: people by the API's name, pods by that of the Service and by its address.
// Names that only the old one's is good for are noted: most are those of its machine.
func (c *Roller) compareNames(ctx context.Context, fresh *rest.Config) error {
	before, err := certificateOf(ctx, c.Inside)
	if err != nil {
		return fmt.Errorf("asking the old API server for its certificate: %w", err)
	}
	after, err := certificateOf(ctx, fresh)
	if err != nil {
		return fmt.Errorf("asking the new API server for its certificate: %w", err)
	}
	service, err := get(ctx, c.Workload.Client, coreKind("Service"), metav1.NamespaceDefault, apiService)
	if err != nil {
		return err
	}
	needed := []string{hostOf(c.Inside), apiServiceName}
	if service != nil {
		needed = append(needed, text(service, "spec", "clusterIP"))
	}
	refused, noted := uncovered(before, after, needed)
	if len(noted) > 0 {
		c.note("only the old API server's certificate is good for %s", strings.Join(noted, ", "))
	}
	if len(refused) > 0 {
		return fmt.Errorf("%w: the new API server's certificate is not good for %s, by which the old one is asked", ErrDiffers, strings.Join(refused, ", "))
	}
	return nil
}

// uncovered are the names that a certificate is good for and another is not: those that are needed, and the others.
func uncovered(before, after *x509.Certificate, needed []string) (refused, noted []string) {
	names := slices.Clone(before.DNSNames)
	for _, ip := range before.IPAddresses {
		names = append(names, ip.String())
	}
	for _, name := range needed {
		if name != "" && before.VerifyHostname(name) == nil && after.VerifyHostname(name) != nil {
			refused = append(refused, name)
		}
	}
	for _, name := range names {
		if after.VerifyHostname(name) != nil && !slices.Contains(refused, name) {
			noted = append(noted, name)
		}
	}
	slices.Sort(noted)
	return refused, slices.Compact(noted)
}

// hostOf is the name by which a server is asked.
func hostOf(config *rest.Config) string {
	if config.ServerName != "" {
		return config.ServerName
	}
	if where, err := url.Parse(config.Host); err == nil && where.Hostname() != "" {
		return where.Hostname()
	}
	return config.Host
}

// certificateOf is what an API server shows to who asks it.
func certificateOf(ctx context.Context, config *rest.Config) (*x509.Certificate, error) {
	where, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	clients, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where.JoinPath("version").String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := clients.Do(request)
	if err != nil {
		return nil, err
	}
	err = response.Body.Close()
	if err == nil && (response.TLS == nil || len(response.TLS.PeerCertificates) == 0) {
		err = errors.New("it showed none")
	}
	if err != nil {
		return nil, err
	}
	return response.TLS.PeerCertificates[0], nil
}
