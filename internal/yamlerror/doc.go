// Package yamlerror finds the line of a file that the YAML libraries complain of: go.yaml.in/yaml, versions 2 and 3, and sigs.k8s.io/yaml, which is built on it.
package yamlerror
