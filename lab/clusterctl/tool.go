package clusterctl

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Tool is clusterctl with a repository and a management cluster. It asks nobody for newer versions.
type Tool struct {
	// Program is the path of the binary.
	Program string
	// Config is what [Repository.Write] returned.
	Config string
	// Kubeconfig leads to the management cluster; without one only templates can be made.
	Kubeconfig string
	// Variables for templates and components, over the environment's.
	Variables map[string]string
	// Heard gets what it writes to standard error while it writes it; nil for nobody.
	Heard io.Writer
}

// Error says what clusterctl was asked, and what it said last.
type Error struct {
	Args []string
	// Output is what it wrote to standard error: progress, then the reason.
	Output string
	Err    error
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("running clusterctl %s: %v: %s", strings.Join(e.Args, " "), e.Err, strings.TrimSpace(e.Output))
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Run calls clusterctl and returns what it wrote to standard output, and to standard error.
func (t Tool) Run(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	if t.Kubeconfig != "" {
		args = append(args, "--kubeconfig", t.Kubeconfig)
	}
	args = append(args, "--config", t.Config)
	cmd := exec.CommandContext(ctx, t.Program, args...)
	// Its own files, such as the time of the last look for a newer version, go beside the configuration.
	home := filepath.Dir(t.Config)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "CLUSTERCTL_DISABLE_VERSIONCHECK=true", "GOPROXY=off", "KUBECONFIG=")
	for name, value := range t.Variables {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if t.Heard != nil {
		cmd.Stderr = io.MultiWriter(&errOut, t.Heard)
	}
	// An interrupt lets it say what it was waiting for.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return out.String(), errOut.String(), &Error{Args: args, Output: errOut.String(), Err: err}
	}
	return out.String(), errOut.String(), nil
}

// Init installs cert-manager, Cluster API with kubeadm, and this provider, and waits until they are available.
func (t Tool) Init(ctx context.Context, limit time.Duration) error {
	_, _, err := t.Run(ctx, "init", "--infrastructure", "kvm", "--wait-providers", "--wait-provider-timeout", strconv.Itoa(int(limit.Seconds())))
	return err
}

// Cluster says which cluster to generate.
type Cluster struct {
	Name, Namespace string
	// Provider is "kvm" when empty, which takes the installed version. Where nothing is installed it has to be "kvm:VERSION".
	Provider string
	// Flavor of the template; the default one when empty.
	Flavor string
	// Version of Kubernetes.
	Version string
	// ControlPlanes and Workers are numbers of machines. Zero leaves them to clusterctl, which takes 1 and 0 whatever the template says.
	ControlPlanes, Workers int
}

func (c Cluster) args() []string {
	if c.Provider == "" {
		c.Provider = "kvm"
	}
	args := []string{"generate", "cluster", c.Name, "--infrastructure", c.Provider, "--target-namespace", c.Namespace}
	if c.Flavor != "" {
		args = append(args, "--flavor", c.Flavor)
	}
	if c.Version != "" {
		args = append(args, "--kubernetes-version", c.Version)
	}
	if c.ControlPlanes > 0 {
		args = append(args, "--control-plane-machine-count", strconv.Itoa(c.ControlPlanes))
	}
	if c.Workers > 0 {
		args = append(args, "--worker-machine-count", strconv.Itoa(c.Workers))
	}
	return args
}

// Generate returns the manifest of a cluster.
func (t Tool) Generate(ctx context.Context, c Cluster) ([]byte, error) {
	out, _, err := t.Run(ctx, c.args()...)
	return []byte(out), err
}

// ListVariables returns what clusterctl says about the variables of a template.
func (t Tool) ListVariables(ctx context.Context, c Cluster) (string, error) {
	out, _, err := t.Run(ctx, append(c.args(), "--list-variables")...)
	return out, err
}

// Describe shows a cluster and the conditions of everything below it.
func (t Tool) Describe(ctx context.Context, namespace, cluster string) (string, error) {
	out, _, err := t.Run(ctx, "describe", "cluster", cluster, "--namespace", namespace, "--show-conditions", "all", "--grouping=false")
	return out, err
}

// RolloutRestart replaces the machines of an object such as kubeadmcontrolplane/NAME or machinedeployment/NAME.
func (t Tool) RolloutRestart(ctx context.Context, namespace, object string) error {
	_, _, err := t.Run(ctx, "alpha", "rollout", "restart", object, "--namespace", namespace)
	return err
}

// WorkloadKubeconfig returns the kubeconfig of a cluster.
func (t Tool) WorkloadKubeconfig(ctx context.Context, namespace, cluster string) ([]byte, error) {
	out, _, err := t.Run(ctx, "get", "kubeconfig", cluster, "--namespace", namespace)
	return []byte(out), err
}

// Move moves the clusters of a namespace to another management cluster. It returns what clusterctl told meanwhile.
func (t Tool) Move(ctx context.Context, namespace, toKubeconfig string) (string, error) {
	_, said, err := t.Run(ctx, "move", "--namespace", namespace, "--to-kubeconfig", toKubeconfig)
	return said, err
}

// Backup writes the objects of the clusters of a namespace into a directory.
func (t Tool) Backup(ctx context.Context, namespace, dir string) error {
	_, _, err := t.Run(ctx, "move", "--namespace", namespace, "--to-directory", dir)
	return err
}
