// Package report renders the documents of planning, checking and running: Plan, CheckReport, Inventory, Proof and RunReport.
//
// A rendering adds nothing that is not in the document and decides nothing: it orders, counts, wraps and escapes. Whatever
// comes from a cluster is hostile until it has passed [neutralise]; every rendering meant for people is made from a copy of
// the document in which all strings have.
//
// A further format is one file and one line in [Formats].
package report
