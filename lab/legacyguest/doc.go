// Package legacyguest describes the image that virtual machines of a legacy cluster boot in the lab: Debian with Docker, on which the
// bootstrap data that a real kvm-operator rendered run unchanged, but for names, keys and sizes (see package userdata).
//
//	<cache>/images/legacy-debian-12/   as package guest lays it out; made by `lab image build legacy`
//
// # What a machine does at boot
//
// The entrypoint of the machine's container boots kernel and RAM disk directly and offers the Ignition document under
// opt/org.flatcar-linux/config. The RAM disk applies it with Ignition's own files stage. Then systemd starts what the document brought:
// nothing of Kubernetes is enabled in the image itself.
//
// # What is real, and what stands in
//
//	files, users, units of the document   real, none is masked or changed
//	kube-apiserver, -controller-manager,  real, 1.21.14 in images that are called 1.21.5
//	  -scheduler, -proxy, kubelet, kubectl
//	etcd, etcdctl                         real, 3.5.21 in an image that is called 3.5.0
//	Docker, containerd, runc, CNI plugins real, Debian's; Docker's unit reads the variables that Flatcar's does
//	k8s-addons, k8s-label-node            real, with every object they create
//	Ignition                              real, Flatcar's 0.36.2
//	registry                              none: `docker pull` succeeds for what is preloaded, see files/usr/lib/legacy/bin/docker
//	k8s-extract                           the kubelet is linked from the root disk: `docker cp` of it would take a minute
//	k8s-setup-network-environment         a stand-in that writes the only variable that is read, DEFAULT_IPV4
//	calico-node                           a stand-in: a bridge and host-local addresses, IPIP between nodes as Calico's, no network policies
//	calico CRDs, migrator, IPAM, typha,   stand-ins that do nothing and are healthy; there are no objects of crd.projectcalico.org
//	  kube-controllers, k8s-api-healthz
//	nslookup                              asks the system's resolver; the public name that units wait for exists
//	audit-rules, multipathd               units that do nothing
//	root disk                             Debian's, instead of a RAM disk with Flatcar
//
// All stand-ins are one program, programs/standin. Images keep the names that the document uses, so a tool that looks at a legacy
// cluster finds what it would find in a real one.
//
// The disks for Docker and the kubelet are empty at every start. The guest makes a file system on a blank one, and gives Docker the
// preloaded images by mounting their layers from the root disk, see files/usr/lib/legacy/bin/images.
//
// # Sizes
//
// A master needs 2 CPUs and 2 GiB, a worker 1 CPU and 1.5 GiB, both with what [userdata.SmallMachine] reserves: the operator's own
// reservations alone are more than that. Without hardware virtualisation probes need [userdata.Options.Patient].
package legacyguest
