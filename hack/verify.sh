#!/usr/bin/env bash
# Fails when a generated file is not what its source says. Generates into a copy, so that nothing in the tree changes.
set -euo pipefail
cd "$(dirname "$0")/.."
controller_gen=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp -r api "$work/api-before"
"$controller_gen" object paths=./api/v1beta2/... output:object:dir="$work/deepcopy"
"$controller_gen" crd paths=./api/v1beta2/... output:crd:dir="$work/crd"
"$controller_gen" object paths=./api/migration/... output:object:dir="$work/deepcopy-migration"
"$controller_gen" crd paths=./api/migration/... output:crd:dir="$work/crd-migration"
diff -u api/v1beta2/zz_generated.deepcopy.go "$work/deepcopy/zz_generated.deepcopy.go"
diff -ru config/crd/bases "$work/crd"
diff -u api/migration/v1alpha1/zz_generated.deepcopy.go "$work/deepcopy-migration/zz_generated.deepcopy.go"
diff -ru --exclude=embed.go config/crd/migration "$work/crd-migration"
go run ./hack/fixtures -check
go mod verify >/dev/null
go mod tidy -diff
(cd lab && go mod tidy -diff)
echo "verify: generated files are current"
