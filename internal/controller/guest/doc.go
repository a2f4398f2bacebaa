// Package guest knows what happens inside a virtual machine: it reads the launcher's reports out of the pod's log, and drains the
// guest's Node.
//
// What comes out of a guest is hostile: lines are bounded, and texts meant for people pass Clean.
package guest
