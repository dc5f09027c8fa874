package estimating

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/engines"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// engineOptions say which engine runs or trains the model. Its defaults are values of other flags.
type engineOptions struct {
	name    string // --engine
	release string // --engine-version

	engines.Engine                   // the zero value if no engine is named
	defaults       []engines.Default // those that were set
}

func (o *engineOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.name, "engine", "", "`ENGINE` whose defaults count, such as llama.cpp")
	flags.StringVar(&o.release, "engine-version", "", "with --engine: its `RELEASE`, such as 0.26 or b6325 (default: today's)")
}

// isLlama reports whether llama.cpp serves the model.
func (o engineOptions) isLlama() bool { return o.Name == llamaCpp }

// llamaCpp is the name of the engine that the flags of onlyLlama choose.
const llamaCpp = "llama.cpp"

// choose finds the engine, and whether it serves or trains.
func (o *engineOptions) choose(given func(flag string) bool, serve, train *bool) error {
	if i := slices.IndexFunc(onlyLlama, given); i >= 0 && o.name == "" && !*train {
		o.name = llamaCpp
	} else if i >= 0 && o.name != "" && !strings.EqualFold(o.name, llamaCpp) {
		return cli.UsageError("estimate: --%s is about llama.cpp: leave it or --engine %s out", onlyLlama[i], o.name)
	}
	switch {
	case o.name == "" && o.release != "":
		return cli.UsageError("estimate: --engine-version needs --engine, whose release it is")
	case o.name == "":
		o.Engine = engines.Any
		return nil
	case o.release != "" && !engines.IsRelease(o.release):
		return cli.UsageError("estimate: --engine-version %s: want a release such as 0.26.1 or b6325", o.release)
	}
	e, err := engines.Named(o.name)
	switch {
	case err != nil:
		return cli.UsageError("estimate: --engine: %w", err)
	case *serve && !e.Serves:
		return cli.UsageError("estimate: %s trains models: leave --serve out", e.Title)
	case *train && !e.Trains:
		return cli.UsageError("estimate: %s serves models: leave --train out", e.Title)
	}
	o.Engine = e
	*serve, *train = *serve || !e.Trains, *train || !e.Serves
	return nil
}

// apply gives flags that are not given the values that the engine has for them.
func (o *engineOptions) apply(flags *pflag.FlagSet, run engines.Run) {
	run.Release = o.release
	if o.release != "" && o.ReleaseFlag != "" && !flags.Changed(o.ReleaseFlag) {
		_ = flags.Lookup(o.ReleaseFlag).Value.Set(strings.TrimPrefix(o.release, "v")) // it takes any text
	}
	o.defaults = o.For(run, flags.Changed)
	for _, d := range o.defaults {
		if err := flags.Lookup(d.Flag).Value.Set(d.Value); err != nil {
			panic(fmt.Sprintf("engines: %s --%s %s: %v", o.Name, d.Flag, d.Value, err)) // it is a part of the program
		}
	}
}

// build returns the number of llama.cpp's build, or 0 if it is not given. Versions came after all numbers.
func (o *engineOptions) build() int {
	n, err := strconv.Atoi(strings.TrimPrefix(o.release, "b"))
	switch {
	case o.release == "":
		return 0
	case err != nil || !strings.HasPrefix(o.release, "b"):
		return math.MaxInt32
	}
	return n
}

// leaveOut takes a flag out of those that have the engine's defaults.
func (o *engineOptions) leaveOut(flag string) {
	o.defaults = slices.DeleteFunc(slices.Clone(o.defaults), func(d engines.Default) bool { return d.Flag == flag })
}

// sets reports whether the engine gave a flag its value.
func (o *engineOptions) sets(flag string) bool {
	return slices.ContainsFunc(o.defaults, func(d engines.Default) bool { return d.Flag == flag })
}

// engineDefaults lists the defaults of all engines.
func engineDefaults() string {
	var b strings.Builder
	b.WriteString("--engine gives these flags the values that the engine has for them, unless they\nare given:\n")
	for _, name := range engines.Names() {
		e, _ := engines.Named(name)
		fmt.Fprintf(&b, "%s (%s %s)\n", e.Name, e.Title, e.Latest)
		for _, d := range e.Defaults {
			b.WriteString(text.Wrap("--"+d.Flag+" "+d.Value+onlyWhere(e, d), 80, "  ", "    "))
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// onlyWhere says where a default holds.
func onlyWhere(e engines.Engine, d engines.Default) string {
	var all []string
	if d.Since != "" {
		all = append(all, "since "+d.Since)
	}
	if d.Before != "" {
		all = append(all, "before "+d.Before)
	}
	if on := onWhich(e, d); on != "" {
		all = append(all, on)
	}
	if d.Except != "" {
		all = append(all, "but "+d.Except)
	}
	if d.With != "" {
		all = append(all, "with --"+d.With)
	}
	if d.Unless != "" {
		all = append(all, "without --"+d.Unless)
	}
	if d.Of != "" {
		all = append(all, "models with "+d.Of)
	}
	if len(all) == 0 {
		return ""
	}
	return ": " + strings.Join(all, ", ")
}

// onWhich says on which GPUs a default holds, if it depends on them. A Memory of 1 byte means any GPU that is given.
func onWhich(e engines.Engine, d engines.Default) string {
	if d.Memory > 1 {
		return fmt.Sprintf("GPUs of %d GiB or more", d.Memory/alloc.GiB)
	}
	var more []alloc.Bytes // memory of the GPUs with another default of the flag
	for _, other := range e.Defaults {
		if other.Flag == d.Flag && other.Memory > d.Memory {
			more = append(more, other.Memory)
		}
	}
	switch {
	case len(more) == 0:
	case d.Memory == 1:
		return fmt.Sprintf("GPUs of less than %d GiB", slices.Min(more)/alloc.GiB)
	case slices.Min(more) == 1:
		return "without --gpu and --fits"
	}
	return ""
}

// flagsOf returns a flag and its value as words of a command line.
func flagsOf(set *pflag.FlagSet, name, value string) []string {
	if f := set.Lookup(name); f != nil && f.NoOptDefVal != "" { // it takes no word after it
		return []string{"--" + name + "=" + value}
	}
	return []string{"--" + name, value}
}
