package main

import (
	"github.com/spf13/cobra"
)

func completionCommand(a *app) *cobra.Command {
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
		Args:      exactly(1, "bash, zsh, fish or powershell"),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch root := cmd.Root(); args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.stdout)
			case "fish":
				return root.GenFishCompletion(a.stdout, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.stdout)
			}
			return usageError("completion: there is none for %q: name bash, zsh, fish or powershell", args[0])
		},
	}
}

// complete makes a flag's values known to the shell.
func complete(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the command has no such flag
	}
}
