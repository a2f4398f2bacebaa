package launcher_test

import (
	"context"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/qemu"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/vmtest"
)

// BenchmarkZeroingInAnEmulatedGuest is why emulated guests are not told of fast string instructions: a guest's kernel clears 256 MiB for one of its programs, with them and without.
func BenchmarkZeroingInAnEmulatedGuest(b *testing.B) {
	kernel, initrd := vmtest.Bare(b, "/bin/busybox time /bin/busybox dd if=/dev/zero of=/dev/null bs=1M count=256\n/bin/busybox poweroff -f\n")
	took := regexp.MustCompile(`real\s+0m ([0-9.]+)s`)
	for name, cpu := range map[string]string{"told": "max", "not-told": qemu.EmulatedCPU} {
		b.Run(name, func(b *testing.B) {
			sum := 0.0
			for b.Loop() {
				ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
				out, err := exec.CommandContext(ctx, "qemu-system-x86_64", "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-accel", "tcg,thread=multi", "-cpu", cpu,
					"-m", "256M", "-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 panic=-1 mitigations=off quiet", "-serial", "stdio").CombinedOutput()
				cancel()
				require.NoError(b, err, "%s", out)
				said := took.FindSubmatch(out)
				require.NotNil(b, said, "%s", out)
				seconds, err := strconv.ParseFloat(string(said[1]), 64)
				require.NoError(b, err)
				sum += seconds
			}
			b.ReportMetric(1000*sum/float64(b.N), "guest-ms/op")
		})
	}
}
