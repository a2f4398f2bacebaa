#!/usr/bin/env bash
# The numbers of docs/performance.md, in its order. Those of whole processes come from hack/measure.
set -euo pipefail
cd "$(dirname "$0")/.."
clusters=${BENCH_CLUSTERS:-500}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# process NAME COMMAND...: wall time and peak memory of a whole process, the median of five runs.
process() {
	local name=$1 runs=${BENCH_RUNS:-5}
	shift
	go run ./hack/measure -runs "$runs" -name "$name" -- "$@"
}

echo "== translation alone, per operation"
go test ./internal/translate -run '^$' -bench Translate -benchmem | grep ^Benchmark

echo "== a year of windows, per operation"
go test ./internal/window -run '^$' -bench AYear -benchmem | grep ^Benchmark

echo "== a year of windows of two hundred periods that overlap"
go test ./internal/window -run '^$' -bench ManyPeriods -benchmem | grep ^Benchmark

echo "== simulated fleet: 200 clusters, 30 nights"
go test ./internal/fleet -run '^$' -bench Fleet -benchtime 3x | grep ^Benchmark
go test -c -o "$work/fleet.test" ./internal/fleet
process "simulated fleet, whole process" "$work/fleet.test" -test.run '^$' -test.bench Fleet -test.benchtime 1x

echo "== plan of a 15-node cluster from a snapshot, whole process"
go run ./hack/fleet -n 1 -workers 14 -o "$work/one"
process "plan, 15 nodes, JSON snapshot" bin/migrate plan --from "$work/one" -o json="$work/plan.json"
process "plan, YAML as recorded (13 nodes)" bin/migrate plan --from testdata/fixtures/b4n9x -o json="$work/plan.json"

echo "== fleet of $clusters clusters"
go run ./hack/fleet -n "$clusters" -o "$work/fleet"
mkdir "$work/plans"
BENCH_RUNS=1
process "inventory of $clusters" bin/migrate inventory --from "$work/fleet" -o json="$work/inventory.json"
process "all plans of $clusters" bin/migrate plan --all --from "$work/fleet" -o json="$work/plans/{cluster}.json"
cat >"$work/fleet.yaml" <<EOF
apiVersion: migration.giantswarm.io/v1alpha1
kind: Fleet
metadata:
  name: all
spec:
  playbooks: [$PWD/playbooks/fleet-in-waves.yaml]
  limits:
    clusters: 10
  waves:
    - name: adopt
      clusters:
        all: true
      until: adopt
    - name: replace
      clusters:
        all: true
      until: finalize
EOF
process "fleet plan of $clusters, two waves" bin/migrate fleet plan -f "$work/fleet.yaml" --from "$work/fleet" -o text="$work/fleet.txt"
half=$((clusters / 2))
go run ./hack/fleet -n "$half" -o "$work/half"
process "inventory of $half" bin/migrate inventory --from "$work/half" -o json="$work/inventory.json"

echo "== 500 clusters of a fleet that wait for a window"
(cd lab && go test ./adoption -run '^$' -bench Waiting -benchtime 1x | grep ^Benchmark)

echo "== resync of 100, 1,000 and 5,000 KVMMachines at rest"
(cd lab && go test ./provider -run '^$' -bench Scale -benchtime 1x -timeout 60m | grep ^Benchmark)

if [ "$(id -u)" = 0 ]; then # It boots virtual machines.
	echo "== memory of an emulated guest"
	go test ./internal/vm/launcher -run '^$' -bench Zeroing -benchtime 2x | grep ^Benchmark
fi

echo "== live plan beside kubectl diff --server-side, same objects, same run"
(cd lab && go test ./acceptance -run '^$' -bench LivePlan -benchtime "${BENCH_LIVE:-5x}" | grep ^Benchmark)
