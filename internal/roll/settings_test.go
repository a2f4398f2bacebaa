package roll

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestSettingsThatUsersWouldNoticeAreCompared(t *testing.T) {
	t.Parallel()
	old := map[string]string{
		"oidc-issuer-url": "https://dex.example.test", "etcd-prefix": "/giantswarm.io", "audit-policy-file": "/etc/kubernetes/policies/audit-policy.yaml", "profiling": "false",
		"enable-admission-plugins": "ResourceQuota,PodSecurityPolicy", "disable-admission-plugins": "LimitRanger", "runtime-config": "api/all=true",
	}
	change := func(name, value string) map[string]string {
		out := map[string]string{
			"audit-policy-file": "/elsewhere", "oidc-issuer-url": "https://dex.example.test", "etcd-prefix": "giantswarm.io", "service-account-issuer": "https://api",
			"enable-admission-plugins": "NodeRestriction,PodSecurityPolicy,ResourceQuota", "disable-admission-plugins": "LimitRanger", "runtime-config": "api/all=true",
		}
		out[name] = value
		if value == "" {
			delete(out, name)
		}
		return out
	}
	for name, c := range map[string]struct {
		after map[string]string
		want  []string
	}{
		"the same, files elsewhere":  {change("profiling", "true"), nil},
		"another issuer":             {change("oidc-issuer-url", "https://other.test"), []string{`--oidc-issuer-url was "https://dex.example.test" and is "https://other.test"`}},
		"no issuer":                  {change("oidc-issuer-url", ""), []string{`--oidc-issuer-url was "https://dex.example.test" and is ""`}},
		"another prefix":             {change("etcd-prefix", "registry"), []string{`--etcd-prefix was "/giantswarm.io" and is "registry"`}},
		"a plugin less":              {change("enable-admission-plugins", "NodeRestriction,ResourceQuota"), []string{`--enable-admission-plugins had "PodSecurityPolicy" and has not`}},
		"a plugin is switched off":   {change("disable-admission-plugins", "LimitRanger,PodSecurityPolicy"), []string{`--disable-admission-plugins was "LimitRanger" and is "LimitRanger,PodSecurityPolicy"`}},
		"fewer API versions":         {change("runtime-config", ""), []string{`--runtime-config had "api/all=true" and has not`}},
		"records end earlier":        {change("audit-log-maxage", "3"), []string{`--audit-log-maxage was "" and is "3"`}},
		"a claim that was not asked": {change("oidc-required-claim", "team=shop"), []string{`--oidc-required-claim was "" and is "team=shop"`}},
		"no audit":                   {change("audit-policy-file", ""), []string{"--audit-policy-file was set and is not"}},
	} {
		assert.Equal(t, c.want, different(old, c.after), name)
	}
}

func TestSettingsThatOnlyTheNewOneHas(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after map[string]string
		want  []string
	}{
		"what kubeadm says always":      {map[string]string{"service-account-issuer": "https://api", "service-cluster-ip-range": "10.0.0.0/16", "enable-admission-plugins": "NodeRestriction"}, nil},
		"records are no harm":           {map[string]string{"audit-policy-file": "/etc/audit.yaml", "audit-log-path": "-"}, nil},
		"a default that is said":        {map[string]string{"etcd-prefix": "/registry", "oidc-signing-algs": "RS256", "oidc-username-claim": "sub"}, nil},
		"another place in etcd":         {map[string]string{"etcd-prefix": "/elsewhere"}, []string{`--etcd-prefix was "/registry" and is "/elsewhere"`}},
		"people who were nobody before": {map[string]string{"oidc-issuer-url": "https://dex.example.test"}, []string{`--oidc-issuer-url was "" and is "https://dex.example.test"`}},
		"a plugin is switched off":      {map[string]string{"disable-admission-plugins": "LimitRanger"}, []string{`--disable-admission-plugins was "" and is "LimitRanger"`}},
		"what the old one cannot read":  {map[string]string{"encryption-provider-config": "/etc/encryption.yaml"}, []string{"--encryption-provider-config was not set and is"}},
	} {
		assert.Equal(t, c.want, different(map[string]string{"profiling": "false"}, c.after), name)
	}
}

func TestFlagsOfAStaticPod(t *testing.T) {
	t.Parallel()
	pod := func(container any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"containers": []any{container}}}}
	}
	assert.Equal(t, map[string]string{"oidc-client-id": "a=b", "anonymous-auth": "", "audit-log-path": "-"}, flagsOf(pod(map[string]any{
		"command": []any{"kube-apiserver", "--oidc-client-id=a=b", "--anonymous-auth"}, "args": []any{"--audit-log-path=-", "word"},
	})))
	for _, odd := range []*unstructured.Unstructured{pod("odd"), pod(map[string]any{"command": "odd"}), {Object: map[string]any{"spec": "odd"}}} {
		assert.Empty(t, flagsOf(odd))
	}
}
