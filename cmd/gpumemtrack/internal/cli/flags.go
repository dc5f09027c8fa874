package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// SizeFlag is the value of a flag that sets a size. It refuses a small number without a unit:
// 10 is never meant as ten bytes.
func SizeFlag(to *alloc.Bytes) pflag.Value { return sizeFlag{to} }

type sizeFlag struct{ *alloc.Bytes }

func (sizeFlag) Type() string { return "size" }

func (s sizeFlag) String() string {
	if s.Bytes == nil || *s.Bytes == 0 {
		return ""
	}
	return s.Bytes.String()
}

func (s sizeFlag) Set(text string) error {
	text = strings.TrimSpace(text)
	if v, err := strconv.ParseFloat(text, 64); err == nil && v != 0 && v < float64(alloc.MiB) && v > 0 {
		return fmt.Errorf("did you mean %sGiB? A number needs its unit: %sB for bytes", text, text)
	}
	return s.Bytes.Set(text)
}

// Complete makes a flag's values known to the shell.
func Complete(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the command has no such flag
	}
}

// headingKey annotates a flag with the heading of help under which it stands.
const headingKey = "heading"

// Heading puts flags of a command under a heading of its help, after those without one.
func Heading(cmd *cobra.Command, title string, flags ...string) {
	for _, name := range flags {
		if err := cmd.Flags().SetAnnotation(name, headingKey, []string{title}); err != nil {
			panic(err) // the command has no such flag
		}
	}
}
