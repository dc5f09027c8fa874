package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// helpCommand is like cobra's, but an unknown command is an error.
func (a *App) helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Help about a command",
		Example: "  gpumemtrack help record",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				if page, ok := a.topicPage(root, args[0]); ok {
					_, err := fmt.Fprint(root.OutOrStdout(), page)
					return err
				}
			}
			cmd, _, err := root.Find(args)
			if err != nil || cmd == root && len(args) > 0 {
				return unknownCommand(root, args[0])
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

// Completion is gpumemtrack completion.
func Completion(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a script that completes commands and flags in a shell",
		Long: `Print a script that completes commands, flags and their values in a shell. With
bash it needs the package bash-completion.`,
		Example: `  source <(gpumemtrack completion bash)      # in this shell
  gpumemtrack completion bash \
    >~/.local/share/bash-completion/completions/gpumemtrack
  gpumemtrack completion zsh >"${fpath[1]}/_gpumemtrack"
  gpumemtrack completion fish >~/.config/fish/completions/gpumemtrack.fish`,
		Args:      Exactly(1, "bash, zsh, fish or powershell"),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch root := cmd.Root(); args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.Stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.Stdout)
			case "fish":
				return root.GenFishCompletion(a.Stdout, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.Stdout)
			}
			return UsageError("completion: there is none for %q: name bash, zsh, fish or powershell", args[0])
		},
	}
}

// Version is gpumemtrack version.
func Version(a *App) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print which version this is, and how it was built",
		Example: "  gpumemtrack version",
		Args:    NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.Stdout, versionText())
			return err
		},
	}
}

// versionText returns the module's version, the commit if built from a checkout, Go's version and
// the platform.
func versionText() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return describeBuild(info)
}

func describeBuild(info *debug.BuildInfo) string {
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	words := []string{ProgramName, info.Main.Version}
	if info.Main.Version == "" {
		words[1] = "(unknown version)"
	}
	if revision := settings["vcs.revision"]; revision != "" {
		words = append(words, "commit "+revision[:min(12, len(revision))])
		if day, _, _ := strings.Cut(settings["vcs.time"], "T"); day != "" {
			words = append(words, "of "+day)
		}
		if settings["vcs.modified"] == "true" {
			words = append(words, "with changes")
		}
	}
	return strings.Join(words, " ") + ", " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}
