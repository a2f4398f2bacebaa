package legacy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
)

func TestNamesTellWhatIsSecret(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"password", "registryPassword", "REGISTRY_PASSWORD", "DB_PASS", "dbPwd", "vault-token", "acme/db-password", "/organization/acme/tokens",
		"identitytoken", "client-secret", "apiKey", "API_KEY", "AWS_ACCESS_KEY_ID", "sshPrivateKey", "certificateKey", "passwordHash", "etcd-password",
		"Authorization", "auth", "credential_id", "passphrase", "oidc-client-secret", "S3Key", "db.pass", "_token_",
	} {
		assert.True(t, IsSecret(name, "opensesame"), name)
		assert.False(t, IsSecret(name, ""), "%s is empty", name)
		assert.False(t, IsSecret(name, "/etc/kubernetes/ssl/key.pem"), "%s is a path", name)
		assert.False(t, IsSecret(name, "$(VARIABLE)"), "%s refers to a variable", name)
		assert.False(t, IsSecret(name, "true"), "%s is a switch", name)
	}
	for _, name := range []string{
		"", "name", "publicKey", "ssh-public-key", "topologyKey", "secretName", "imagePullSecretNames", "tokenSecretRef", "secretNamespace", "service-account-key-file",
		"passwordFile", "TOKEN_PATH", "initial-cluster-token", "ETCD_INITIAL_CLUSTER_TOKEN", "token-ttl", "tokenExpirationSeconds", "sshAuthorizedKeys", "authorization-mode",
		"secrets.example.test/reload", "keyring", "author", "monkeys", "node-labels", "encryption-provider-config",
	} {
		assert.False(t, IsSecret(name, "opensesame"), name)
	}
	assert.True(t, IsSecret("token", "/Zm9vYmFy+QUJDREVG=="), "base64 may begin like a path")
	assert.True(t, IsSecret("password", int64(2718281)))
	assert.False(t, IsSecret("tokens", int64(5)), "a number of them")
	assert.False(t, IsSecret("password", nil))
	assert.True(t, IsSecret("key", "a1b2c3d4e5f6g7h8"), "what else may it be")
	assert.False(t, IsSecret("key", "node-role"))
}

func TestFieldsArgumentsAndAddressesAreRedactedByName(t *testing.T) {
	t.Parallel()
	r := newRedactor(newDigester("ab1cd", []byte("material")))
	applied := func(object string) map[string]any {
		return map[string]any{"kubectl.kubernetes.io/last-applied-configuration": object, "vault-token": "PLANTED", "acme/db-password": "PLANTED", "acme/state": `{"a":{"token":"PLANTED"}}`}
	}
	object := map[string]any{
		"apiVersion": "core.giantswarm.io/v1alpha1", "kind": "CertConfig",
		"metadata": map[string]any{
			"name": "x", "labels": map[string]any{"acme/token": "kept2"},
			"annotations": applied(`{"kind":"CertConfig","apiVersion":"core.giantswarm.io/v1alpha1","spec":{"cert":{"password":"PLANTED","kept":"kept1"}}}`),
		},
		"spec": map[string]any{
			"cert":      map[string]any{"password": "PLANTED", "passwords": []any{"PLANTED"}, "pin": map[string]any{"password": int64(2718281)}},
			"proxy":     "http://user:PLANTED@with@PLANTED@proxy:3128/?access_token=PLANTED&page=kept3",
			"git":       "https://PLANTEDtoken12345@git.example.test",
			"image":     "docker-pullable://k8s-kvm-image-12@sha256:1234",
			"settings":  []any{map[string]any{"name": "DB_PASS", "value": "PLANTED"}, map[string]any{"name": "TOKEN_PATH", "value": "kept4"}},
			"secretRef": map[string]any{"name": "kept5", "key": "key-2024-abcdef"},
			"tolerate":  []any{map[string]any{"key": "pool-2024-abcdef", "operator": "Exists"}},
			"template": map[string]any{"metadata": map[string]any{"annotations": applied(`{"data":{"password":"PLANTED"},"kind":"Secret","apiVersion":"v1"}`)}, "spec": map[string]any{
				"args": []any{
					"--token=PLANTED", "--etcd-password=PLANTED with a blank", "-password=PLANTED", "--secret", "PLANTED", "REGISTRY_PASSWORD=PLANTED", "--token", "--kept6",
					"--token-auth-file=/etc/kept7", "--use-service-account-credentials=true", "--oidc-client-secret=$(KEPT8)", "--initial-cluster-token=kept9",
				},
				"command": []any{"sh", "-c", `run --token="PLANTED words" --name=kept10 --password='PLANTED' --secret PLANTED12345abc; --token kept11`},
			}},
		},
	}
	r.object(object)
	text := string(mustJSON(object))
	assert.NotContains(t, text, "PLANTED")
	assert.NotContains(t, text, "2718281")
	for _, kept := range []string{
		"kept1\\", "kept2", "user:hmac", "@proxy:3128", "page=kept3", "@git.example.test", "k8s-kvm-image-12@sha256:1234", "kept4", "kept5", "key-2024-abcdef", "pool-2024-abcdef",
		"--token=hmac", "REGISTRY_PASSWORD=hmac", "--kept6", "/etc/kept7", "credentials=true", "$(KEPT8)", "kept9", "--name=kept10", "--token kept11",
	} {
		assert.Contains(t, text, kept)
	}
	again := deepCopy(object)
	r.object(again)
	assert.Empty(t, cmp.Diff(object, again), "what is redacted stays as it is")
}
