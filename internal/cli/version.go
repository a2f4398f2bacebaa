package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// Setting is the value of one flag and where it came from.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// versionDocument is what version shows.
type versionDocument struct {
	Version
	Platform string `json:"platform"`
	// Config is the configuration file in use.
	Config   string    `json:"config,omitempty"`
	Settings []Setting `json:"settings"`
}

func (s *session) versionCommand() *cobra.Command {
	var outs outputs
	formats := plainFormats()
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Which program this is, and which settings are in force",
		Long: `Prints the version. As JSON or YAML it also shows every flag of every command with its value and where that comes from: flag, environment,
config file or built-in.`,
		Example: `  migrate version
  migrate version -o json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.version(cmd, outs, formats) },
	}
	addOutputFlag(cmd, &outs, formats)
	return cmd
}

func (s *session) version(cmd *cobra.Command, outs outputs, formats []string) error {
	resolved, err := outs.resolved(formats)
	if err != nil {
		return err
	}
	document := versionDocument{
		Version: s.app.Version, Platform: runtime.GOOS + "/" + runtime.GOARCH, Config: s.global.configFile,
		Settings: settings(cmd, s.env, s.config),
	}
	if document.Go == "" {
		document.Go = runtime.Version()
	}
	return s.printStructured(cmd.Context(), resolved, document, func(w io.Writer) {
		_, _ = fmt.Fprintf(w, "migrate %s", document.Version.Version)
		if document.Commit != "" {
			_, _ = fmt.Fprintf(w, " (%s)", strings.TrimSpace(document.Commit+" "+document.Date))
		}
		_, _ = fmt.Fprintf(w, ", %s, %s\n", document.Go, document.Platform)
		for _, setting := range document.Settings {
			if setting.Source == fromEnv || setting.Source == fromConfig {
				_, _ = fmt.Fprintf(w, "  --%s %s (%s)\n", setting.Name, setting.Value, setting.Source)
			}
		}
	})
}

// settings lists the flags of all commands as they would be in force now. Those of the running command have been layered already.
func settings(running *cobra.Command, env map[string]string, config map[string][]string) []Setting {
	seen := map[string]Setting{}
	commands := append([]*cobra.Command{running}, family(running.Root())...)
	for _, cmd := range commands {
		collect := func(flag *pflag.Flag) {
			if _, known := seen[flag.Name]; known || flag.Hidden || flag.Name == "help" || !hasDefaults(flag) {
				return
			}
			setting := inForce(flag, env[envName(flag.Name)], config[flag.Name])
			seen[flag.Name] = setting
		}
		cmd.Flags().VisitAll(collect)
		cmd.InheritedFlags().VisitAll(collect)
	}
	all := make([]Setting, 0, len(seen))
	for _, setting := range seen {
		all = append(all, setting)
	}
	slices.SortFunc(all, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// inForce is what a flag would be set to now, and by what, when a variable and the configuration file say this of it.
func inForce(flag *pflag.Flag, variable string, values []string) Setting {
	own := flag.Value.String()
	setting := Setting{Name: flag.Name, Value: own, Source: fromBuiltIn}
	switch {
	case variable != "":
		setting.Value, setting.Source = variable, fromEnv
	case len(values) > 0:
		setting.Value, setting.Source = strings.Join(values, ","), fromConfig
	case flag.Changed:
		setting.Source = fromFlag
	}
	if flag.Changed && own != setting.Value {
		setting.Value, setting.Source = own, fromFlag
	}
	// What is secret in an item of a list is only seen before they are joined.
	list, isList := flag.Value.(pflag.SliceValue)
	switch {
	case isList && setting.Value == own && len(list.GetSlice()) > 0:
		setting.Value = "[" + shownAll(flag.Name, list.GetSlice()) + "]"
	case setting.Source == fromConfig:
		setting.Value = shownAll(flag.Name, values)
	default:
		setting.Value = shown(flag.Name, setting.Value)
	}
	return setting
}

// shownAll is how the values of a list are repeated.
func shownAll(name string, values []string) string {
	all := make([]string, 0, len(values))
	for _, value := range values {
		all = append(all, shown(name, value))
	}
	return strings.Join(all, ",")
}

// plainFormats are those of small documents.
func plainFormats() []string { return []string{"text", "json", "yaml"} }

// printStructured shows a small document as JSON, YAML or text.
func (s *session) printStructured(ctx context.Context, outs []output, document any, text func(w io.Writer)) error {
	if err := checkFolders(filesOf(outs)...); err != nil {
		return err
	}
	return deliver(ctx, s.out, outs, func(w io.Writer, out output) error {
		switch out.format {
		case "json":
			encoder := json.NewEncoder(w)
			encoder.SetIndent("", "  ")
			encoder.SetEscapeHTML(false)
			return encoder.Encode(document)
		case "yaml":
			data, err := yaml.Marshal(document)
			if err == nil {
				_, err = w.Write(data)
			}
			return err
		default:
			text(w)
			return nil
		}
	})
}
