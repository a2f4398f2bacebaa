package adoption

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

// BenchmarkAdopt adopts a cluster of 15 nodes, from the first look to the lock, and takes it back between the rounds. There is no etcd behind
// the legacy name here, so both looks of the proof wait ten seconds for it: "evidence-s" is what they took together, "adopt-s" the rest.
//
//	cd lab && go test ./adoption -run '^$' -bench Adopt -benchtime 1x
func BenchmarkAdopt(b *testing.B) {
	c := world.Cluster(b, migrationtest.ClusterOptions{Workers: 14})
	o := newOperator(b, c, "fleet")
	var adopt, looks float64
	writes := 0
	for b.Loop() {
		code, stdout, said := o.run(b.Context(), "--settle", "1ms")
		require.Equal(b, cli.CodeOK, code, said)
		report := decode(b, stdout)
		took := report.FinishedAt.Sub(report.StartedAt).Seconds()
		for _, phase := range report.Phases {
			for _, step := range phase.Steps {
				if (step.ID == "fence/evidence" || step.ID == "adopt/proof") && step.StartedAt != nil && step.FinishedAt != nil {
					looks += step.FinishedAt.Sub(*step.StartedAt).Seconds()
					took -= step.FinishedAt.Sub(*step.StartedAt).Seconds()
				}
			}
		}
		adopt += took
		writes = report.Writes.Total
		b.StopTimer()
		code, _, said = o.rollback(b.Context())
		require.Equal(b, cli.CodeOK, code, said)
		b.StartTimer()
	}
	b.ReportMetric(adopt/float64(b.N), "adopt-s")
	b.ReportMetric(looks/float64(b.N), "evidence-s")
	b.ReportMetric(float64(writes), "writes")
}
