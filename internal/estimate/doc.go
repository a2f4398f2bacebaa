// Package estimate says how long the steps of a migration take: as the event logs of earlier runs have it, and where there are none, by built-in figures.
package estimate
