// Package migrationtest is the world in which the migration engine is tried
// without virtual machines: everything is real except kubelets.
//
//	┌ private network and mount namespace (package labnet) ────────────────────────┐
//	│ 127.0.0.1   management cluster: etcd, API server, controller manager,        │
//	│             Cluster API core, CAPBK and KCP, capk-controller, all webhooks   │
//	│ 127.0.0.1   workload cluster's etcd and API server, one pair per cluster     │
//	│ 127.1.x.y   port 443: relay to that API server, where api.<id>.k8s… leads    │
//	│ 127.2.x.y   the same for its etcd, where etcd.<id>.k8s… leads, if wanted     │
//	│ 10.199.x.y  members of etcd to each other; a new control plane machine with  │
//	│             etcd, API server and a kubelet's way to ports of pods            │
//	│ 10.100.0.1  port 53: the names of all workload clusters                      │
//	└──────────────────────────────────────────────────────────────────────────────┘
//
// One World serves all tests of a binary. Each test takes legacy clusters of
// its own out of it, with ids, networks and certificate authorities nobody else
// has, so tests may run in parallel.
//
//	var world *migrationtest.World
//
//	func TestMain(m *testing.M) {
//		os.Exit(migrationtest.Main(m, func(w *migrationtest.World) { world = w }))
//	}
//
//	func TestAdoption(t *testing.T) {
//		cluster := world.Cluster(t, migrationtest.ClusterOptions{Workers: 3})
//		before, mark := cluster.State(t), world.Management.Mark(t)
//		engine := migrate.New(world.Management.As(t, "engine", "system:masters"), ...)
//		...
//		world.Management.Writes(t, mark).By("engine")
//	}
//
// What is not real:
//   - kubelets: a few lines bind pods of legacy clusters to hosts, report them
//     as running, and end them once deleted (see kubelet);
//   - the legacy operators: nobody writes unless a test asks for it with
//     [Cluster.ForeignWriter];
//   - the version of the workload cluster's API server, which is the lab's;
//   - Cluster API's Deployments: the managers run as processes, and paused
//     Deployments say so to whoever looks.
package migrationtest
