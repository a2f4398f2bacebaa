// Package migration holds the CustomResourceDefinition of ClusterMigration, so that migrate can install it.
package migration

import _ "embed" // for the definition below

//go:embed migration.giantswarm.io_clustermigrations.yaml
var definition []byte

// ClusterMigrationCRD returns the definition as YAML.
func ClusterMigrationCRD() []byte { return append([]byte(nil), definition...) }
