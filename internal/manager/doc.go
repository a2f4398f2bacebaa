// Package manager puts the provider's controllers and webhooks into one program: options, caches, servers.
package manager
