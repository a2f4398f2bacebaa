// Package translate turns the picture of a legacy cluster into Cluster API objects.
//
// It is pure: picture and options in, objects, fields and findings out; no client, no clock, no randomness. Every legacy leaf
// field is one row of the table in fields.go, and every value in every object knows the fields it came from. A field without a
// row needs a human's decision; so does a value that cannot be understood. Nothing is guessed and nothing is lost silently.
package translate
