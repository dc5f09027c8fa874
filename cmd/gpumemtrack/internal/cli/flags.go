package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
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

func (s sizeFlag) Set(size string) error {
	size = strings.TrimSpace(size)
	if v, err := strconv.ParseFloat(size, 64); err == nil && v != 0 && v < float64(alloc.MiB) && v > 0 {
		return fmt.Errorf("did you mean %sGiB? A number needs its unit: %sB for bytes", size, size)
	}
	return s.Bytes.Set(size)
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

// Replaced says, for a flag that the command had once, what to type instead.
func Replaced(cmd *cobra.Command, flag, instead string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[replacedKey+flag] = instead
}

// replacedKey begins the annotations of a command that name flags which it had once.
const replacedKey = "replaced --"

// unknownFlag says which flags of the command may have been meant by one that does not exist.
func unknownFlag(cmd *cobra.Command, name string, err error) error {
	short, _ := errors.AsType[*pflag.NotExistError](err)
	if instead, ok := cmd.Annotations[replacedKey+strings.ReplaceAll(name, "_", "-")]; ok {
		dashes := "--"
		if short.GetSpecifiedShortnames() != "" {
			dashes = "-"
		}
		return fmt.Errorf("there is no flag %s%s: use %s", dashes, name, instead)
	}
	if short.GetSpecifiedShortnames() != "" {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	near := text.Near(strings.ToLower(name), names)
	if len(near) == 0 {
		return err
	}
	return fmt.Errorf("there is no flag --%s: did you mean --%s?", name, strings.Join(near, " or --"))
}
