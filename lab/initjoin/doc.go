// Package initjoin tries how a planned control plane's first machine joins the etcd of a legacy master: with the real kubeadm and real etcd
// servers, in a network and with system directories of its own, but without a virtual machine.
package initjoin
