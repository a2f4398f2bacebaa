// Package nights works out in which windows of a playbook a cluster's migration would be done, with the rules of the engine and the times of estimates.
package nights
