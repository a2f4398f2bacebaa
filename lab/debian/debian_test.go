package debian_test

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/debian"
)

func TestEveryProgramHasAPackageAndAPurpose(t *testing.T) {
	for _, p := range debian.Programs() {
		assert.NotEmpty(t, p.Packages, p.Name)
		assert.NotEmpty(t, p.Purposes, p.Name)
		for _, purpose := range p.Purposes {
			assert.Contains(t, debian.Purposes(), purpose, p.Name)
		}
	}
	assert.Equal(t, debian.Programs(), debian.For(debian.Purposes()...))
}

func TestMissing(t *testing.T) {
	has := func(names ...string) debian.LookPath {
		return func(name string) (string, error) {
			for _, n := range names {
				if n == name {
					return "/usr/bin/" + n, nil
				}
			}
			return "", exec.ErrNotFound
		}
	}
	hosts := debian.For(debian.Hosts)
	assert.Equal(t, []string{"qemu-system-x86", "qemu-utils", "iproute2", "iptables", "util-linux"}, debian.Packages(debian.Missing(has(), hosts)))
	assert.Equal(t, []string{"iptables"}, debian.Packages(debian.Missing(has("qemu-system-x86_64", "qemu-img", "ip", "unshare", "iptables"), hosts)))
	assert.Empty(t, debian.Missing(func(name string) (string, error) { return name, nil }, hosts))
}

func TestInstall(t *testing.T) {
	var out bytes.Buffer
	var ran []string
	apt := debian.Apt{Progress: &out, Root: true, Run: func(cmd *exec.Cmd) error {
		ran = append(ran, strings.Join(cmd.Args, " "))
		assert.Contains(t, cmd.Env, "DEBIAN_FRONTEND=noninteractive")
		return nil
	}}
	require.NoError(t, apt.Install(t.Context(), "a", "b"))
	assert.Equal(t, []string{"apt-get update", "apt-get install --yes --no-install-recommends a b"}, ran)
	assert.Equal(t, strings.Join(ran, "\n")+"\n", out.String())

	apt.Run = func(*exec.Cmd) error { return errors.New("exit status 100") }
	require.EqualError(t, apt.Install(t.Context(), "a"), "installing a: apt-get update: exit status 100")

	apt.Root = false
	err := apt.Install(t.Context(), "a", "b")
	require.ErrorIs(t, err, debian.ErrNotRoot)
	assert.EqualError(t, err, "installing a, b: not root; as root: apt-get install --no-install-recommends a b")
}
