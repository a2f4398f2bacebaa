package cli

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// kindClientConfig is the kind of the configuration file.
const kindClientConfig = "ClientConfig"

// ParseClientConfig reads a configuration file: values for flags, by the flag's name.
//
//	apiVersion: migration.giantswarm.io/v1alpha1
//	kind: ClientConfig
//	defaults:
//	  context: anubis
//	  storageconfig-name: cluster-service
//	  output: [text, html=report.html]
//
// It is strict: an unknown flag is an error with its line, and secrets are refused.
func ParseClientConfig(name string, data []byte, known []string) (map[string][]string, error) {
	d := &yamlDocument{name: name}
	defaults := map[string][]string{}
	fields := d.parse(data, kindClientConfig, "defaults")
	if node := fields["defaults"]; node != nil && node.Tag != "!!null" {
		var usable []string
		for _, flag := range known {
			if flag != "config" && flag != "help" && !isSecretFlag(flag) {
				usable = append(usable, flag)
			}
		}
		for flag, value := range d.mapping(node, "defaults") {
			switch {
			case isSecretFlag(flag):
				d.wrong(value.Line, "%s is a secret; it has no place in a file", flag)
				continue
			case !slices.Contains(usable, flag):
				d.wrong(value.Line, "there is no flag %q to give a default%s", flag, didYouMean(flag, usable))
				continue
			}
			entries := []*yaml.Node{value}
			if value.Kind == yaml.SequenceNode {
				entries = value.Content
			}
			for _, entry := range entries {
				defaults[flag] = append(defaults[flag], d.text(entry, flag))
			}
		}
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return defaults, nil
}
