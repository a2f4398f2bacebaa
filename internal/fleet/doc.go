// Package fleet decides which of many clusters may begin or go on now: waves, canaries, rests, limits, windows and holds. It talks to nobody; who runs clusters asks it.
package fleet
