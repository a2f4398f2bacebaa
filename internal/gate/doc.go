// Package gate asks, before something begins, whether the world is as a playbook wants it: checks of the program, and addresses that answer.
package gate
