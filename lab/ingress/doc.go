// Package ingress is an ingress that passes TLS through: it reads the name a
// client asks for, finds the Ingress, its Service and a ready endpoint, and
// copies bytes. Certificates are the backends' own.
package ingress
