// Package install puts a legacy cluster into a running lab: the objects, the operators as Deployments, the programs of the pods' images,
// and the routes to the machines.
package install
