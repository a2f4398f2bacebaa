// Package legacy is the parent of what makes a legacy cluster in the lab:
//
//	desired   what kvm-operator wants for a cluster, compared with recordings of the real one
//	operator  stand-ins for the platform's operators, with the rules of the real ones
//	cluster   the recorded objects with other certificates, names and sizes
//	pod       the programs in the containers of a machine's pod
//	network   bridges, parts and routes
//	install   all of it in a running lab
//	cli       the program lab-legacy
package legacy
