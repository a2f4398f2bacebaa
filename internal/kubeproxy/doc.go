// Package kubeproxy knows as whom the kube-proxy of a workload cluster shows itself to the API beside its legacy certificate, and what it may do as that.
package kubeproxy
