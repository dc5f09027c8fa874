package cli

import (
	"github.com/spf13/cobra"
)

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
