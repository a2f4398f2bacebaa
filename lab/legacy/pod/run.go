package pod

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/network"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
)

// Paths of the programs in their images.
const (
	PathEndpointUpdater = "/opt/k8s-endpoint-updater"
	PathEntrypoint      = "/docker-entrypoint.sh"
	PathIfUp            = ifup
	PathShutdown        = "/qemu-shutdown"
	PathHealth          = "/k8s-kvm-health"
	PathDeferrer        = "/shutdown-deferrer"
	PathHook            = "/pre-shutdown-hook"
	PathFlannel         = "/flanneld"
	PathBridge          = "/k8s-network-bridge"
	PathFlannelHealth   = "/flannel-network-health"
)

// PatienceEnv is a duration for Health.Patience; the image map sets it.
const PatienceEnv = "LAB_LEGACY_PATIENCE"

// Forgives begins the log of a machine's health program, which has a line for every check that was forgiven.
const Forgives = "what is forgiven is told here"

// Forgiveness is the line in the log of a machine's health program that says that it did not answer and was forgiven.
func Forgiveness(at time.Time, unanswered time.Duration, why error) string {
	return fmt.Sprintf("%s forgiven for %s: %s", at.UTC().Format(time.RFC3339), unanswered.Round(time.Second), why)
}

// LongestForgiveness is the longest time without an answer that a log of these lines tells of, from a moment on. What began before counts from that moment.
func LongestForgiveness(log string, from time.Time) (longest time.Duration) {
	for line := range strings.Lines(log) {
		var at, unanswered string
		if _, err := fmt.Sscanf(line, "%s forgiven for %s", &at, &unanswered); err != nil {
			continue
		}
		when, err := time.Parse(time.RFC3339, at)
		if err != nil || when.Before(from) {
			continue
		}
		if silent, err := time.ParseDuration(strings.TrimSuffix(unanswered, ":")); err == nil {
			longest = max(longest, min(silent, when.Sub(from)))
		}
	}
	return longest
}

// Environment is what the programs need of the world.
type Environment struct {
	Env   func(string) string
	Clock clock.WithTicker
	// Client makes one for the management cluster, with the pod's own token.
	Client func() (client.Client, error)
}

// ErrUnknown says that there is no such program.
var ErrUnknown = errors.New("no program of a legacy pod")

// Run is the program of a path.
func Run(ctx context.Context, e Environment, path string, args []string) error {
	programs := map[string]func(context.Context, Environment, []string) error{
		PathEndpointUpdater: runUpdater, PathEntrypoint: runEntrypoint, PathIfUp: runIfUp, PathShutdown: runShutdown, PathHealth: runHealth,
		PathDeferrer: runDeferrer, PathHook: runHook, PathFlannel: runFlannel, PathBridge: runBridge, PathFlannelHealth: runFlannelHealth,
	}
	for name, run := range programs {
		if filepath.Base(name) == filepath.Base(path) {
			return run(ctx, e, args)
		}
	}
	return fmt.Errorf("%s: %w", path, ErrUnknown)
}

// flag returns the value of --name=value.
func flag(args []string, name string) (string, error) {
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "--"+name+"=") })
	if i < 0 {
		return "", fmt.Errorf("--%s is missing", name)
	}
	_, value, _ := strings.Cut(args[i], "=")
	return value, nil
}

// runUpdater writes the machine's address into the pod's annotation, and has nothing to do then.
func runUpdater(ctx context.Context, e Environment, args []string) error {
	bridge, err := flag(args, "provider.bridge.name")
	if err != nil {
		return err
	}
	namespace, err := flag(args, "service.kubernetes.cluster.namespace")
	if err != nil {
		return err
	}
	address, err := waitForAddress(ctx, e.Clock, bridge)
	if err != nil {
		return err
	}
	c, err := e.Client()
	if err != nil {
		return err
	}
	p := &corev1.Pod{}
	p.Namespace, p.Name = namespace, e.Env("POD_NAME")
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, desired.IPAnnotation, address.Addr().Next())
	if err := c.Patch(ctx, p, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("writing the machine's address: %w", err)
	}
	<-ctx.Done()
	return nil
}

func runEntrypoint(ctx context.Context, e Environment, _ []string) error {
	m, err := MachineFromEnv(e.Env)
	if err != nil {
		return err
	}
	return m.Start(ctx, e.Clock)
}

func runIfUp(_ context.Context, e Environment, args []string) error {
	if len(args) != 1 {
		return errors.New("the interface's name is missing")
	}
	return PlugMachine(args[0], e.Env)
}

func runShutdown(ctx context.Context, e Environment, args []string) error {
	if len(args) != 1 {
		return errors.New("the deferrer's address is missing")
	}
	if err := WaitForDrain(ctx, e.Clock, args[0]); err != nil {
		return err
	}
	return PowerOff(ctx, e.Clock, monitor)
}

func runHook(ctx context.Context, e Environment, args []string) error {
	if len(args) != 1 {
		return errors.New("the deferrer's address is missing")
	}
	return WaitForDrain(ctx, e.Clock, args[0])
}

func runHealth(ctx context.Context, e Environment, _ []string) error {
	h := &Health{EnvFile: e.Env("NETWORK_ENV_FILE_PATH"), CheckAPI: e.Env("CHECK_K8S_API") == "true", Clock: e.Clock}
	_, _ = fmt.Fprintln(os.Stdout, Forgives) // As below.
	h.Forgave = func(at time.Time, unanswered time.Duration, why error) {
		_, _ = fmt.Fprintln(os.Stdout, Forgiveness(at, unanswered, why)) // A log that nobody can write to ends no machine.
	}
	if text := e.Env(PatienceEnv); text != "" {
		var err error
		if h.Patience, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("reading %s: %w", PatienceEnv, err)
		}
	}
	return h.Serve(ctx, e.Env("LISTEN_ADDRESS"))
}

func runDeferrer(ctx context.Context, e Environment, args []string) error {
	address, err := flag(args, "server.listen.address")
	if err != nil {
		return err
	}
	c, err := e.Client()
	if err != nil {
		return err
	}
	d := &Deferrer{Client: c, Namespace: e.Env("MY_POD_NAMESPACE"), Pod: e.Env("MY_POD_NAME")}
	return d.Serve(ctx, address)
}

// part is this host's part of the network.
func part(e Environment) (whole, own netip.Prefix, err error) {
	if whole, err = netip.ParsePrefix(e.Env("NETWORK")); err != nil {
		return whole, own, fmt.Errorf("reading NETWORK: %w", err)
	}
	address, err := netip.ParseAddr(e.Env("HOST_IP"))
	if err != nil {
		return whole, own, fmt.Errorf("reading HOST_IP: %w", err)
	}
	host, err := network.Host(address)
	if err != nil {
		return whole, own, err
	}
	own, err = network.Part(whole, host)
	return whole, own, err
}

// runFlannel says which part of the network is this host's.
func runFlannel(ctx context.Context, e Environment, _ []string) error {
	whole, own, err := part(e)
	if err != nil {
		return err
	}
	if err := WriteEnv(e.Env("NETWORK_ENV_FILE_PATH"), whole, own, network.MTU); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// runBridge makes the bridge once the part is known.
func runBridge(ctx context.Context, e Environment, _ []string) error {
	var own netip.Prefix
	err := wait(ctx, e.Clock, bridgePoll, func() (bool, error) {
		var err error
		own, err = Subnet(e.Env("NETWORK_ENV_FILE_PATH"))
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the network's environment: %w", err)
	}
	whole, _, err := part(e)
	if err != nil {
		return err
	}
	router, err := netip.ParseAddr(labnet.Gateway)
	if err != nil {
		return fmt.Errorf("reading the router's address: %w", err)
	}
	if err := network.EnsureBridge(e.Env("NETWORK_BRIDGE_NAME"), whole, own, router); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func runFlannelHealth(ctx context.Context, e Environment, _ []string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if _, ok, err := network.Address(e.Env("NETWORK_BRIDGE_NAME")); err != nil || !ok {
			http.Error(w, "the bridge has no address", http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprintln(w, "ok") // The client sees that it is missing.
	})
	return serve(ctx, e.Env("LISTEN_ADDRESS"), mux)
}
