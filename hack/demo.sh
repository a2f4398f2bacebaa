#!/usr/bin/env bash
# The demonstration. First a real management cluster with the objects of a real legacy cluster, looked at with migrate. Then, for root, the
# cluster itself on virtual machines, which migrate adopts. Everything runs on loopback or in a network of its own; whatever happens, it is
# taken down at the end. DEMO_MACHINES=no leaves out the second half, which takes half an hour on two cores.
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
	-o text -o html=plan.html -o json=plan.json -o markdown=plan.md
written=(plan.html plan.md plan.json)

# adopt takes a running cluster of two machines over. migrate runs where both API servers answer: in the lab's network.
adopt() {
	local inside=(bin/lab exec --dir "$work/lab" --) ca=$work/lab/legacy/$id/ca
	say "a legacy cluster on virtual machines: one master, one worker (without hardware virtualization this takes a while)"
	bin/lab down --dir "$work/lab"
	bin/lab setup
	bin/lab image build legacy
	bin/lab up --dir "$work/lab" --hosts 4 --provider
	bin/lab legacy up --dir "$work/lab" --faster 10
	unset KUBECONFIG

	say "migrate run $id: checks, then fence, translate, adopt"
	"${inside[@]}" "$PWD/bin/migrate" run "$id" --yes --ca-cert "$ca/ca.crt" --ca-key "$ca/ca.key" --decisions hack/demo/machines.yaml \
		-o text -o html=report.html

	say "migrate proof $id: nothing was restarted"
	"${inside[@]}" "$PWD/bin/migrate" proof "$id"
	"${inside[@]}" "$PWD/bin/migrate" status
	"${inside[@]}" kubectl get machines --all-namespaces -o wide
	bin/lab legacy status --dir "$work/lab"
	written=(report.html "${written[@]}")
}
if [ "${DEMO_MACHINES:-yes}" = no ]; then
	say "the second half, with virtual machines, is left out: DEMO_MACHINES=no"
elif [ "$(id -u)" != 0 ]; then
	say "the second half, with virtual machines, is left out: it needs root"
else
	adopt
fi

say "written here"
for file in "${written[@]}"; do
	printf '  %s/%s\n' "$PWD" "$file"
done
