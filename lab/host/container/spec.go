package container

// Spec is what the shim needs to become a container.
type Spec struct {
	// Hostname in the container. Empty keeps the machine's.
	Hostname string `json:"hostname"`
	// RootDir is an existing empty directory that the root is put together in.
	RootDir string `json:"rootDir"`
	// OwnNetwork says that a network namespace is handed over.
	OwnNetwork bool `json:"ownNetwork"`
	// Privileged gives all devices of the machine and a writable /sys.
	Privileged bool `json:"privileged"`
	// ReadOnlyRoot makes the root read-only, but not what is mounted into it.
	ReadOnlyRoot bool `json:"readOnlyRoot"`
	// Mounts in any order.
	Mounts []Mount `json:"mounts"`
	// Env is the complete environment.
	Env []string `json:"env"`
	// Command is the program and its arguments.
	Command []string `json:"command"`
	// WorkingDir is made if it does not exist.
	WorkingDir string `json:"workingDir"`
}

// Mount is a file or directory of the machine in a container.
type Mount struct {
	Source string `json:"source"`
	// SubPath below Source is what is mounted; a missing one becomes a directory. It cannot leave Source by symbolic links.
	SubPath  string `json:"subPath,omitempty"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}
