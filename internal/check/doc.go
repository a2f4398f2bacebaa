// Package check decides whether a legacy cluster may be migrated: one registry of preflight checks, each a pure function over
// facts that were gathered before, and the CheckReport and Inventory documents they fill.
package check
