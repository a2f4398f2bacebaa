// Command capk-controller is the Cluster API infrastructure provider for KVM.
package main

import (
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/manager"
)

// version is set by the linker.
var version = "devel"

func main() {
	if err := manager.NewCommand(version).ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "capk-controller:", err)
		os.Exit(1)
	}
}
