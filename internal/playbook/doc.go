// Package playbook reads what may happen to a cluster when: windows, order, soak times, answers and acceptances, in layers, strictly, with the origin of every
// value. It decides nothing by itself and talks to nobody.
package playbook
