package adoption

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

// BenchmarkAdopt adopts a cluster of 15 nodes, from the first look to the lock, and takes it back between the rounds. With -v it tells how long
// each step took.
//
//	cd lab && go test ./adoption -run '^$' -bench Adopt -benchtime 1x
func BenchmarkAdopt(b *testing.B) {
	c := world.Cluster(b, migrationtest.ClusterOptions{Workers: 14})
	o := newOperator(b, c, "fleet")
	var adopt float64
	writes := 0
	forward := o.run
	for b.Loop() {
		code, stdout, said := forward(b.Context(), "--settle", "1ms")
		require.Equal(b, cli.CodeOK, code, said)
		report := decode(b, stdout)
		adopt += report.FinishedAt.Sub(report.StartedAt).Seconds()
		for _, phase := range report.Phases {
			for _, step := range phase.Steps {
				if step.StartedAt != nil && step.FinishedAt != nil {
					b.Logf("%-26s %6.2f s", step.ID, step.FinishedAt.Sub(*step.StartedAt).Seconds())
				}
			}
		}
		writes = report.Writes.Total
		b.StopTimer()
		code, _, said = o.rollback(b.Context())
		require.Equal(b, cli.CodeOK, code, said)
		forward = o.resume
		b.StartTimer()
	}
	b.ReportMetric(adopt/float64(b.N), "adopt-s")
	b.ReportMetric(float64(writes), "writes")
}
