package check

import "flag"

var update = flag.Bool("update", false, "rewrite docs/checks.md from the registry")
