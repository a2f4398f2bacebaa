#!/usr/bin/env bash
# The demonstration: a real management cluster with the objects of a real legacy cluster, looked at with migrate.
# Everything runs on loopback; whatever happens, it is taken down at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

id=al9qy
fixture=testdata/fixtures/$id
work=$(mktemp -d)
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

clean_up() {
	status=$?
	bin/lab down --dir "$work/lab" || status=1
	rm -rf "$work"
	exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

say "starting the management cluster (etcd, Kubernetes, Cluster API with its webhooks)"
bin/lab up --dir "$work/lab" --crds config/crd/bases --crds testdata/management-cluster/crds.yaml
export KUBECONFIG=$work/kubeconfig
bin/lab kubeconfig --dir "$work/lab" --content >"$KUBECONFIG"

say "loading the legacy cluster $id, as its operator wrote it"
bin/lab load --dir "$work/lab" --cluster "$id" testdata/management-cluster "$fixture/input"

say "migrate inventory"
bin/migrate inventory

say "migrate check $id"
code=0
bin/migrate check "$id" --ca-cert "$fixture/ca/ca.crt" --ca-key "$fixture/ca/ca.key" || code=$?
printf '(exit %d: 3 is blocked, 8 needs a decision)\n' "$code"
case $code in 0 | 3 | 8) ;; *) exit "$code" ;; esac

say "migrate snapshot $id"
bin/migrate snapshot "$id" --out "$work/snapshot.tar.gz"
bin/migrate inventory --from "$work/snapshot.tar.gz"

say "migrate plan $id, with the decisions that were taken (hack/demo/decisions.yaml)"
bin/migrate plan "$id" --ca-cert "$fixture/ca/ca.crt" --ca-key "$fixture/ca/ca.key" --decisions hack/demo/decisions.yaml \
	-o text -o html=report.html -o json=plan.json -o markdown=report.md

say "written here"
for file in report.html plan.json report.md; do
	printf '  %s/%s\n' "$PWD" "$file"
done
