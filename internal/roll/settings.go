package roll

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
)

// settings are the flags of an API server that its users would notice: with another value, people are somebody else or nobody, and records end. Of lists, such as
// those of admission plugins and of API versions that are served, the new one may have more. What names a file is compared by being there: the files lie elsewhere on
// the new machine.
func settings() (values, lists, files []string) {
	return []string{
			"etcd-prefix", "oidc-client-id", "oidc-groups-claim", "oidc-groups-prefix", "oidc-issuer-url", "oidc-required-claim", "oidc-signing-algs", "oidc-username-claim", "oidc-username-prefix",
			"audit-log-maxage", "audit-log-maxbackup", "audit-log-maxsize", "disable-admission-plugins", "service-account-issuer", "service-cluster-ip-range",
		}, []string{
			"enable-admission-plugins", "requestheader-allowed-names", "runtime-config",
		}, []string{
			"audit-log-path", "audit-policy-file", encryption, "oidc-ca-file",
		}
}

// encryption names the file that says how objects are encrypted in etcd.
const encryption = "encryption-provider-config"

// compareSettings compares the flags of both API servers, as their static pods show them.
func (c *Roller) compareSettings(ctx context.Context) error {
	mirrors, err := c.mirrored(ctx, apiServer)
	if err != nil {
		return err
	}
	node, err := c.newNode(ctx)
	if err != nil {
		return err
	}
	if len(mirrors) == 0 || node == nil {
		return fmt.Errorf("%w: the static pods of both API servers cannot be seen", ErrDiffers)
	}
	var flags [2]map[string]string
	for i, name := range []string{mirrors[0], apiServerPod + node.GetName()} {
		pod, err := get(ctx, c.Workload.Client, coreKind("Pod"), systemNamespace, name)
		if err != nil {
			return err
		}
		if pod == nil {
			return fmt.Errorf("%w: pod %s/%s is gone", adopt.ErrReplaced, systemNamespace, name)
		}
		flags[i] = flagsOf(pod)
	}
	if other := different(flags[0], flags[1]); len(other) > 0 {
		return fmt.Errorf("%w: %s", ErrDiffers, strings.Join(other, "; "))
	}
	c.note("both API servers have the same settings for people, names and records, of %d and %d flags", len(flags[0]), len(flags[1]))
	return nil
}

// defaults are what an API server takes for settings that are left out, other than nothing (k8s.io/apiserver, pkg/server/options/etcd.go, and kubernetes, pkg/kubeapiserver/options/authentication.go).
func defaults() map[string]string {
	return map[string]string{"etcd-prefix": "/registry", "oidc-signing-algs": "RS256", "oidc-username-claim": "sub"}
}

// different are the settings that the new API server has otherwise.
func different(before, after map[string]string) []string {
	values, lists, files := settings()
	var out []string
	for _, name := range values {
		was, is := cmp.Or(before[name], defaults()[name]), cmp.Or(after[name], defaults()[name])
		// kubeadm names an issuer of tokens and the addresses of Services always; what the old one did without them, tokens and Services show by themselves.
		if was == "" && (name == "service-account-issuer" || name == "service-cluster-ip-range") {
			continue
		}
		if strings.Trim(was, "/") != strings.Trim(is, "/") {
			out = append(out, fmt.Sprintf("--%s was %q and is %q", name, was, is))
		}
	}
	for _, name := range lists {
		is := strings.Split(after[name], ",")
		for item := range strings.SplitSeq(before[name], ",") {
			if item != "" && !slices.Contains(is, item) {
				out = append(out, fmt.Sprintf("--%s had %q and has not", name, item))
			}
		}
	}
	for _, name := range files {
		_, was := before[name]
		if _, is := after[name]; was && !is {
			out = append(out, fmt.Sprintf("--%s was set and is not", name))
		}
	}
	// The old API server, which serves on beside the new one and goes on alone after a rollback, could not read what the new one encrypts.
	if _, is := after[encryption]; is {
		if _, was := before[encryption]; !was {
			out = append(out, fmt.Sprintf("--%s was not set and is", encryption))
		}
	}
	return out
}

// flagsOf are the flags of a pod's first container. None of those that are looked at holds a secret.
func flagsOf(pod *unstructured.Unstructured) map[string]string {
	flags := map[string]string{}
	containers, _, err := unstructured.NestedSlice(pod.Object, "spec", "containers")
	if err != nil || len(containers) == 0 {
		return flags
	}
	container, ok := containers[0].(map[string]any)
	if !ok {
		return flags
	}
	for _, field := range []string{"command", "args"} {
		words, _, err := unstructured.NestedStringSlice(container, field)
		if err != nil {
			continue
		}
		for _, word := range words {
			if flag, found := strings.CutPrefix(word, "--"); found {
				name, value, _ := strings.Cut(flag, "=")
				flags[name] = value
			}
		}
	}
	return flags
}
