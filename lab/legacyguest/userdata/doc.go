// Package userdata renders the bootstrap data of a legacy cluster's virtual machines anew.
//
// A legacy cluster keeps the bootstrap data of each machine in a ConfigMap, key user_data: an Ignition document of version 2.2.0,
// compressed and encoded, with every certificate and private key in clear. [Render] takes such a document and returns the same for
// another authority and another domain; what it does not know it leaves as it is. [Wrap] puts it into the small document that the
// virtual machine really gets, as the entrypoint of the machine's container does at every start.
package userdata
