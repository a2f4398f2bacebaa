#!/usr/bin/env bash
# The demonstration. First a real management cluster with the objects of a real legacy cluster, looked at with migrate. Then, for root, a legacy
# cluster on virtual machines with a workload in it, which migrate takes through all phases: DEMO=adopt ends when its machines are adopted, DEMO=plan
# after the first half. Everything runs on loopback or in a network of its own; whatever happens, it is taken down at the end, and what was written goes with it unless WORK=DIR
# names a directory to keep it below when something fails. All phases take half an hour to an hour on two cores without hardware virtualization, also with the worker that
# WORKERS=1 adds; on a fresh machine what they need is built before, which takes more than another half. The first worker is tied to its host by host volumes, as the recorded one was, and goes
# before its replacement comes; HOST_VOLUMES=false leaves them out, and the replacement comes first.
set -euo pipefail
kept=${WORK:+$(realpath --canonicalize-missing "$WORK")} # A relative one is the caller's.
cd "$(dirname "$0")/.."

until=${DEMO:-all}
workers=${WORKERS:-0}
volumes=${HOST_VOLUMES:-true}
case $volumes in
true | false) ;;
*)
	echo "HOST_VOLUMES=$volumes: it is true or false" >&2
	exit 2
	;;
esac
case $until in
plan | adopt | all) ;;
*)
	echo "DEMO=$until: it is plan, adopt or all" >&2
	exit 2
	;;
esac

id=al9qy
fixture=testdata/fixtures/$id
if [ -n "$kept" ]; then
	mkdir -p "$kept"
	work=$(mktemp -d "$kept/demo.XXXXXX")
else
	work=$(mktemp -d)
fi
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

clean_up() {
	status=$?
	trap '' INT TERM # What is taken down is taken down whole.
	if [ "$status" != 0 ] && [ -n "$kept" ] && [ -d "$work/lab/mc/logs" ]; then
		cp -r "$work/lab/mc/logs" "$work" || echo "the lab's logs are lost" >&2
	fi
	if ! bin/lab down --dir "$work/lab"; then
		echo "what runs of the lab is told in $work/lab" >&2
		exit 1
	fi
	if [ "$status" = 0 ] || [ -z "$kept" ]; then
		rm -rf "$work"
	else
		echo "what was written is in $work" >&2
	fi
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

# again runs a migration once more when it could not begin (exit 1 or 3) or a step of it stopped (exit 6), as its message says: on machines that two cores emulate, what is asked may
# take longer than a check or a step waits.
again() {
	local code
	for _ in 1 2 3 4 5; do
		code=0
		"$@" || code=$?
		case $code in 1 | 3 | 6) sleep 15 ;; *) return "$code" ;; esac
	done
	return "$code"
}

# answered asks until there is an answer, for ten minutes at most. That something is blocked (exit 3) is one.
answered() {
	local code last=$((SECONDS + 600))
	while true; do
		code=0
		"$@" || code=$?
		case $code in 0 | 3) return "$code" ;; esac
		[ "$SECONDS" -lt "$last" ] || return "$code"
		sleep 5
	done
}

# nodes_are_ready tells that every machine of the legacy cluster has a Node that is, or which is not.
nodes_are_ready() {
	local nodes
	nodes=$("${workload[@]}" get nodes --no-headers) && [ "$(grep -cw Ready <<<"$nodes")" = $((1 + workers)) ] || {
		printf 'waiting for %d Nodes to be ready:\n%s\n' $((1 + workers)) "$nodes"
		return 1
	}
}

# boot starts a legacy cluster with a workload. migrate runs where both API servers answer: in the lab's network.
boot() {
	say "a legacy cluster on virtual machines: one master, workers: $workers (without hardware virtualization this takes a while)"
	bin/lab down --dir "$work/lab"
	bin/lab setup
	bin/lab image build legacy
	local hosts=$((3 + workers))
	if [ "$until" = all ]; then
		bin/lab image build next
		hosts=$((4 + workers))
	fi
	bin/lab up --dir "$work/lab" --hosts "$hosts" --provider
	bin/lab legacy up --dir "$work/lab" --faster 10 --workers "$workers" --host-volumes="$volumes" --wait 90m
	unset KUBECONFIG

	say "what its customer runs (hack/demo/shop.yaml)"
	workload=("${inside[@]}" kubectl --kubeconfig "$work/lab/legacy/$id/kubeconfig")
	answered "${workload[@]}" apply --server-side -f hack/demo/shop.yaml
	answered "${workload[@]}" rollout status --namespace shop deployment/echo --timeout 15m
	# On slow machines the legacy platform leaves pods behind that can neither run nor end, and a drain would wait for them (CHK-NODE-008).
	answered "${workload[@]}" delete jobs --namespace kube-system --field-selector=status.successful=0 --cascade=orphan
	answered "${workload[@]}" delete pods --namespace kube-system --selector=job-name --field-selector=status.phase=Pending --grace-period=0 --force
	# A machine answers before its Node and its pod are ready, and nothing begins with one that is not.
	answered nodes_are_ready
	answered "${inside[@]}" kubectl wait --for=condition=Ready pod --selector "app in (master,worker)" --namespace "$id" --timeout 10m
	if [ "$workers" -gt 0 ]; then
		# The port of the management cluster that leads to the workers, whichever they are.
		local port
		port=$("${inside[@]}" kubectl get service worker --namespace "$id" --output 'jsonpath={.spec.ports[0].nodePort}')
		probe=(--probe "shop=http://10.100.0.1:$port/")
	fi
}

# adopt makes Machines of the running virtual machines.
adopt() {
	say "migrate run $id: checks, then fence, translate, adopt"
	local meanwhile=("${probe[@]}") address
	if [ "$workers" = 0 ]; then
		# The workload runs on the master, whose port is asked for as long as the master is there.
		address=$(answered "${workload[@]}" get nodes --output 'jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}')
		meanwhile=(--probe "shop, at the master=http://$address:30010/" --probe "the API by its Service's IP, from the shop=http://$address:30010/api")
	fi
	again "${run[@]}" "${meanwhile[@]}" -o text -o html=report.html

	say "migrate proof $id: nothing was restarted"
	answered "${inside[@]}" "$PWD/bin/migrate" proof "$id"
	"${inside[@]}" "$PWD/bin/migrate" status
	"${inside[@]}" kubectl get machines --all-namespaces -o wide
	bin/lab legacy status --dir "$work/lab"
}

# replace goes on where adopt ended: a new control plane, new workers, and nothing left of the old platform. The report of the last run tells of all of them.
replace() {
	say "migrate run $id: the control plane, past the point of no return"
	again "${run[@]}" "${probe[@]}" --until control-plane --approve control-plane --approve point-of-no-return --patience 1h --etcd-snapshot "$work/etcd.db" \
		--etcd-latency 5s -o text -o html=report.html # half of the time after which etcd of the lab's images elects
	answered "${inside[@]}" "$PWD/bin/migrate" etcd members "$id"

	say "migrate run $id: the workers"
	local meanwhile=("${probe[@]}")
	if [ "$workers" = 1 ] && [ "$volumes" = true ]; then
		# The data of the first worker stay on their host, so it goes before its replacement comes, and the port that leads to the workers leads nowhere
		# meanwhile. The workload's own port is at every node, also at the new control plane, which stays.
		local address
		address=$("${inside[@]}" kubectl get machines --namespace org-acme --selector cluster.x-k8s.io/control-plane \
			--output 'jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}')
		meanwhile=(--probe "shop, at the control plane=http://$address:30010/" --probe "the API by its Service's IP, from the shop=http://$address:30010/api")
	fi
	again "${run[@]}" "${meanwhile[@]}" --until workers --patience 1h -o text -o html=report.html

	say "migrate run $id: the rest of the old platform goes"
	again "${run[@]}" "${probe[@]}" --until finalize --approve finalize --soak 1s --patience 1h -o text -o html=report.html -o json=report.json
	bin/migrate show report.json --audience customer -o html=customer.html

	say "an ordinary cluster: nothing to plan, nothing to forecast"
	"${inside[@]}" "$PWD/bin/migrate" plan "$id" --short --detailed-exitcode
	answered "${inside[@]}" "$PWD/bin/migrate" forecast "$id" --detailed-exitcode
	"${inside[@]}" kubectl get clusters,machines --all-namespaces
	answered "${workload[@]}" get nodes,pods --all-namespaces
	written=(customer.html report.json "${written[@]}")
}

probe=()
inside=(bin/lab exec --dir "$work/lab" --)
run=("${inside[@]}" "$PWD/bin/migrate" run "$id" --yes --ca-cert "$work/lab/legacy/$id/ca/ca.crt" --ca-key "$work/lab/legacy/$id/ca/ca.key"
	--decisions hack/demo/machines.yaml)
if [ "$until" = plan ]; then
	say "the second half, with virtual machines, is left out: DEMO=plan"
elif [ "$(id -u)" != 0 ]; then
	say "the second half, with virtual machines, is left out: it needs root"
else
	rm -f report.html report.json customer.html # of an earlier demonstration
	boot
	adopt
	written=(report.html "${written[@]}")
	[ "$until" = adopt ] || replace
fi

say "written here"
for file in "${written[@]}"; do
	printf '  %s/%s\n' "$PWD" "$file"
done
