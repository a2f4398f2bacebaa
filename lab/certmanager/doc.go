// Package certmanager builds cert-manager out of its Go module and writes the manifest by which clusterctl installs it: what a lab
// needs of it, which is self-signed issuers and certificates for webhooks.
package certmanager
