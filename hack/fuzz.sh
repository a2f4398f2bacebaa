#!/usr/bin/env bash
# Runs every fuzz target for the given time, one after the other.
set -euo pipefail
cd "$(dirname "$0")/.."
time=$1
grep -rlE '^func Fuzz' --include='*_test.go' internal | xargs -n1 dirname | sort -u | while read -r package; do
	grep -rhoE '^func Fuzz[A-Za-z0-9_]+' "$package"/*_test.go | awk '{print $2}' | sort -u | while read -r target; do
		echo "== $package $target"
		go test "./$package" -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 5x </dev/null
	done
done
