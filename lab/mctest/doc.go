// Package mctest runs a package's tests against one shared management cluster.
//
//	var cluster *mc.Cluster
//
//	func TestMain(m *testing.M) {
//		os.Exit(mctest.Main(m, mc.Options{Parts: mc.ClusterAPI}, func(c *mc.Cluster) { cluster = c }))
//	}
package mctest
