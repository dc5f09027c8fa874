// Package engines has the settings that programs which run and train models have unless they are told otherwise: a table
// (table.go) of defaults by engine, with the release and the GPU that they depend on and the function of the engine that sets
// each. A default is a flag of gpumemtrack estimate and its value. How an engine then uses memory is no part of this package.
package engines

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Engine is a program or a library that runs or trains models.
type Engine struct {
	Name   string // as --engine takes it
	Title  string // as its developers write it
	Latest string // the release that the defaults were read from last; they hold for later ones as far as is known
	Serves bool
	// ReleaseFlag is the flag that has the engine's release, if its releases differ in more than the Defaults.
	ReleaseFlag string
	Trains      bool
	// Pool is whether keys and values have memory that is allocated ahead; otherwise it grows with the text.
	Pool     bool
	Defaults []Default
}

// Default is what an engine does unless it is told otherwise. The last one of a flag that applies counts.
type Default struct {
	Flag    string // of gpumemtrack estimate, without dashes
	Value   string // as the flag takes it
	Mode    string // "serve" or "train", if it holds in one alone
	Setting string // what the engine calls it
	Source  string // the file and the function of the engine

	Since  string      // the first release with this default; "" if all have it
	Before string      // the first release without it; "" if none lacks it
	Memory alloc.Bytes // the least memory of the GPU; 0 for any GPU
	Except string      // a GPU for which it does not hold, as --gpu takes it
	Unless string      // a flag that replaces this default too, when it is given
	With   string      // a flag without which it does not hold
	Of     string      // a property of models without which it does not hold, such as Recurrent; "" if it holds for all
}

// Run is what the defaults depend on. Zero values mean unknown.
type Run struct {
	Release string      // of the engine; "" means Latest
	Mode    string      // "serve" or "train"
	GPU     string      // as --gpu takes it
	Memory  alloc.Bytes // of the GPU
	Model   []string    // properties of the model
}

// The properties of models that defaults depend on.
const (
	Recurrent   = "recurrent layers"             // some layers keep a state of fixed size in place of keys and values
	WholeImages = "images that attend both ways" // the tokens of an image attend to each other, so that it is run in one step
)

// Names lists the engines, in the order of the table.
func Names() []string {
	names := make([]string, len(table))
	for i, e := range table {
		names[i] = e.Name
	}
	return names
}

// Named returns an engine by its name, in upper or lower case. The error lists the names.
func Named(name string) (Engine, error) {
	i := slices.IndexFunc(table, func(e Engine) bool { return strings.EqualFold(e.Name, name) })
	if i < 0 {
		return Engine{}, fmt.Errorf("no engine is named %q: want one of %s", name, strings.Join(Names(), ", "))
	}
	return table[i], nil
}

// For returns the defaults that apply to a run, one for each flag at most. given reports whether the user gave a flag,
// whose value then counts instead.
func (e Engine) For(run Run, given func(flag string) bool) []Default {
	release := cmp.Or(run.Release, e.Latest)
	var all []Default
	for _, d := range e.Defaults {
		switch {
		case given(d.Flag) || d.Unless != "" && given(d.Unless) || d.With != "" && !given(d.With):
		case d.Mode != "" && d.Mode != run.Mode:
		case d.Since != "" && Compare(release, d.Since) < 0, d.Before != "" && Compare(release, d.Before) >= 0:
		case run.Memory < d.Memory, d.Except != "" && d.Except == run.GPU, d.Of != "" && !slices.Contains(run.Model, d.Of):
		default:
			all = slices.DeleteFunc(all, func(earlier Default) bool { return earlier.Flag == d.Flag })
			all = append(all, d)
		}
	}
	return all
}

// Compare compares two releases of an engine by their numbers, such as "0.26.1" or "v0.26.1rc2". It returns a negative
// number if a came before b, and 0 if their numbers are equal. Builds such as "b6325" of llama.cpp came before its
// versions.
func Compare(a, b string) int { return slices.Compare(numbers(a), numbers(b)) }

// IsRelease reports whether a text has the number of a release.
func IsRelease(text string) bool { return len(numbers(text)) > 0 }

// numbers are those of a release. They end where a part is no number, as in 0.26.1rc2. A build begins with one that is less
// than those of all versions.
func numbers(release string) []int {
	var all []int
	version := strings.TrimPrefix(release, "v")
	if build, ok := strings.CutPrefix(release, "b"); ok && strings.Trim(build, "0123456789") == "" && build != "" {
		version, all = build, []int{-1}
	}
	for part := range strings.SplitSeq(version, ".") {
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil {
			break
		}
		if all = append(all, n); digits != part {
			break
		}
	}
	return all
}
