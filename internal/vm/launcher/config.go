package launcher

import (
	"fmt"
	"path/filepath"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
)

// minMemoryBytes is what the smallest guest needs to boot.
const minMemoryBytes = 64 << 20

// decode reads the configuration and checks what would fail only later, or not at all. What is wrong leads to contract.ExitConfig.
func decode(text string) (*contract.Config, error) {
	if text == "" {
		return nil, exit.Errorf(contract.ExitConfig, "the variable %s is not set; the provider's controller sets it in the pods it makes", contract.ConfigVariable)
	}
	c, err := contract.DecodeConfig(text)
	if err == nil {
		err = check(c)
	}
	if err != nil {
		return nil, exit.Errorf(contract.ExitConfig, "%w; controller and launcher may be of different versions", err)
	}
	return c, nil
}

func check(c *contract.Config) error {
	switch {
	case c.Name == "" || c.ProviderID == "" || c.Image == "":
		return bad("name, providerID and image must be given")
	case c.Role != contract.RoleControlPlane && c.Role != contract.RoleWorker:
		return bad("role %q is none of %s and %s", c.Role, contract.RoleControlPlane, contract.RoleWorker)
	case c.CPUs < 1 || c.MemoryBytes < minMemoryBytes:
		return bad("%d CPUs and %d bytes of memory are too little", c.CPUs, c.MemoryBytes)
	case c.BootSeconds < 1 || c.SilenceSeconds < 1 || c.ShutdownSeconds < 0:
		return bad("bootSeconds and silenceSeconds have to be positive, shutdownSeconds must not be negative")
	case len(c.Disks) == 0 || c.Disks[0].Name != contract.DiskRoot:
		return bad("the first disk has to be called %s", contract.DiskRoot)
	}
	if err := checkDisks(c.Disks); err != nil {
		return err
	}
	return checkShares(c.Shares)
}

func checkShares(shares []contract.Share) error {
	tags := map[string]bool{}
	for _, s := range shares {
		if tags[s.Tag] || !plain(s.Tag) {
			return bad("share %q: its tag is taken or no plain name", s.Tag)
		}
		tags[s.Tag] = true
	}
	return nil
}

func checkDisks(disks []contract.Disk) error {
	names := map[string]bool{seedSerial: true}
	for _, d := range disks {
		// The root disk is at least as large as the image, so its size may be left open.
		sized := d.SizeBytes > 0 || (d.SizeBytes == 0 && d.Name == contract.DiskRoot)
		if names[d.Name] || !plain(d.Name) || !sized {
			return bad("disk %q: its name is taken or its size is missing", d.Name)
		}
		if d.Dir != contract.DisksDir && d.Dir != contract.EtcdDir {
			return bad("disk %s: dir is %q, it has to be %s or %s", d.Name, d.Dir, contract.DisksDir, contract.EtcdDir)
		}
		names[d.Name] = true
	}
	return nil
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", contract.ErrConfig, fmt.Sprintf(format, args...))
}

// plain names can be files and serial numbers, which have at most 20 bytes, or mount tags, which have at most 31.
func plain(name string) bool {
	const most = 31
	return filepath.IsLocal(name) && name == filepath.Base(name) && name != "." && len(name) <= most
}
