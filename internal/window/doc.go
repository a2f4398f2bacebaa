// Package window computes when maintenance may begin: openings and closed periods in a time zone, with its clock changes. It knows no clock of its own.
package window
