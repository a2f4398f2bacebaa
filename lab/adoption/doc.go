// Package adoption tries migrate run, rollback and their relatives against real API servers, Cluster API's controllers and this provider: all
// but virtual machines is real (see package migrationtest).
package adoption
