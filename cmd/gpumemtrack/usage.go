package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageTemplate is cobra's, for commands without groups and inherited flags. Flags wrap at 80
// columns, and what a user fills in is in capitals, as in every command's Use.
const usageTemplate = `Usage:
  {{.UseLine}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if or .IsAvailableCommand (eq .Name "help")}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

{{flagUsages .LocalFlags}}{{end}}{{if .HasAvailableSubCommands}}

Use "{{.CommandPath}} COMMAND --help" for more about a command.{{end}}
`

func init() { cobra.AddTemplateFunc("flagUsages", flagUsages) }

// headingKey annotates a flag with the heading of help under which it stands.
const headingKey = "heading"

// heading puts flags of a command under a heading of its help, after those without one.
func heading(cmd *cobra.Command, title string, flags ...string) {
	for _, name := range flags {
		if err := cmd.Flags().SetAnnotation(name, headingKey, []string{title}); err != nil {
			panic(err) // the command has no such flag
		}
	}
}

// flagUsages describes flags under their headings, in the order of their first flags.
func flagUsages(all *pflag.FlagSet) string {
	titles, sets := []string{"Flags"}, map[string]*pflag.FlagSet{"Flags": pflag.NewFlagSet("", pflag.ContinueOnError)}
	all.VisitAll(func(f *pflag.Flag) {
		title := "Flags"
		if at := f.Annotations[headingKey]; len(at) > 0 {
			title = at[0]
		}
		if sets[title] == nil {
			titles, sets[title] = append(titles, title), pflag.NewFlagSet("", pflag.ContinueOnError)
		}
		sets[title].AddFlag(f)
	})
	var parts []string
	for _, title := range titles {
		parts = append(parts, title+":\n"+strings.TrimRight(sets[title].FlagUsagesWrapped(80), " \n"))
	}
	return strings.Join(parts, "\n\n")
}
