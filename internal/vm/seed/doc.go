// Package seed makes what a guest starts from: the small read-only disk with the guest agent and its configuration, which is also
// cloud-init's NoCloud data source, or the Ignition configuration with the agent's units merged in.
package seed
