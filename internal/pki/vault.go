package pki

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/openbao/openbao/api/v2"
)

const (
	// DefaultVaultKeyField is the field that holds the CA's key at the platform's own path.
	DefaultVaultKeyField = "private_key"
	// DefaultVaultCertificateField is the one that holds its certificate.
	DefaultVaultCertificateField = "certificate"

	vaultTimeout = 30 * time.Second
)

// DefaultVaultPath is where the platform's patched Vault shows the CA of a cluster.
func DefaultVaultPath(cluster string) string { return "pki-" + cluster + "/gimmeallyourlovin" }

// Vault reads the pair from a path of Vault or OpenBao: a key-value store of version 1 or 2, or any other path that answers a read
// with the two fields.
type Vault struct {
	// Address is the server's URL, Token the credential, CAFile the optional certificate authority of the server.
	Address string
	Token   Token
	CAFile  string
	// Namespace is Vault's own notion of one; empty for none.
	Namespace string
	// Path is the mount and the path below it, without /v1/. For version 2 stores data/ may be left out.
	Path string
	// KeyField and CertificateField default to private_key and certificate.
	KeyField, CertificateField string
}

// String names the path.
func (v Vault) String() string { return "Vault path " + strings.Trim(v.Path, "/") }

// Load reads the path, and where nothing is there the same path in the notation of a version 2 store.
func (v Vault) Load(ctx context.Context) (*Authority, error) {
	client, err := v.client()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", v, err)
	}
	path := strings.Trim(v.Path, "/")
	fields, err := readVault(ctx, client, path)
	if err == nil && fields == nil {
		// A version 2 store answers "not found" to a path without data/ behind the mount's name.
		if mount, below, ok := strings.Cut(path, "/"); ok && !strings.HasPrefix(below, "data/") {
			fields, err = readVault(ctx, client, mount+"/data/"+below)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", v, err)
	}
	if fields == nil {
		return nil, fmt.Errorf("reading %s: nothing is there", v)
	}
	certificate, err := vaultField(fields, v.CertificateField, DefaultVaultCertificateField)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", v, err)
	}
	key, err := vaultField(fields, v.KeyField, DefaultVaultKeyField)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", v, err)
	}
	return ParseAuthority(v.String(), certificate, key)
}

func (v Vault) client() (*api.Client, error) {
	switch {
	case v.Address == "":
		return nil, errors.New("the server's address is missing")
	case v.Token.Empty():
		return nil, errors.New("the token is missing")
	case strings.Trim(v.Path, "/") == "":
		return nil, errors.New("the path is missing")
	}
	config := api.DefaultConfig()
	if config.Error != nil {
		return nil, fmt.Errorf("preparing the client: %w", config.Error)
	}
	config.Address = v.Address
	config.AgentAddress = "" // from the environment it would win over Address
	config.Timeout = vaultTimeout
	config.MaxRetries = 2
	if v.CAFile != "" {
		if err := config.ConfigureTLS(&api.TLSConfig{CACert: v.CAFile}); err != nil {
			return nil, fmt.Errorf("reading the server's CA: %w", err)
		}
	}
	client, err := api.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("preparing the client: %w", err)
	}
	// The client picks credentials and headers from the environment by itself; only what the caller gave may count.
	client.SetToken(v.Token.value())
	client.ClearNamespace()
	if v.Namespace != "" {
		client.SetNamespace(v.Namespace)
	}
	return client, nil
}

// readVault returns the fields at a path, nil when nothing is there. Its errors carry the server's status, never a body.
func readVault(ctx context.Context, client *api.Client, path string) (map[string]any, error) {
	secret, err := client.Logical().ReadWithContext(ctx, path)
	var response *api.ResponseError
	switch {
	case errors.As(err, &response) && response.StatusCode == http.StatusNotFound:
		return nil, nil
	case errors.As(err, &response):
		return nil, fmt.Errorf("the server answered %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	case err != nil:
		return nil, err
	case secret == nil || len(secret.Data) == 0:
		return nil, nil
	}
	// Version 2 wraps the fields together with their metadata.
	if _, versioned := secret.Data["metadata"]; versioned {
		inner, ok := secret.Data["data"].(map[string]any)
		if !ok || len(inner) == 0 {
			return nil, errors.New("the newest version is deleted")
		}
		return inner, nil
	}
	return secret.Data, nil
}

func vaultField(fields map[string]any, name, fallback string) ([]byte, error) {
	if name == "" {
		name = fallback
	}
	text, ok := fields[name].(string)
	if !ok || text == "" {
		return nil, fmt.Errorf("the field %s is missing", name)
	}
	return []byte(text), nil
}
