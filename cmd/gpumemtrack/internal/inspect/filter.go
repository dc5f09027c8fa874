package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// filter says which memory a table counts, and how it is grouped.
type filter struct {
	Focus    string        `json:"focus,omitempty"`
	Ignore   string        `json:"ignore,omitempty"`
	Kinds    []string      `json:"kinds,omitempty"`
	Sections []string      `json:"sections,omitempty"`
	Older    time.Duration `json:"older_ns,omitempty"`
	Groups   []string      `json:"groups,omitempty"` // "NAME=REGEXP"

	focus, ignore *regexp.Regexp
	groups        []group
}

// group is a name for call stacks that match an expression.
type group struct {
	name  string
	calls *regexp.Regexp
}

func (f *filter) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Focus, "focus", "", "only call stacks with a function or a file that matches the `REGEXP`")
	flags.StringVar(&f.Ignore, "ignore", "", "no call stacks with a function or a file that matches the `REGEXP`")
	flags.StringArrayVar(&f.Kinds, "kind", nil, "only memory of the `KIND`; may be repeated")
	flags.StringArrayVar(&f.Sections, "section", nil, "only memory of the section with this `PATH`, and of those within; may be repeated")
	flags.DurationVar(&f.Older, "older", 0, "only live buffers that are older than this `TIME`, such as 1m")
	flags.StringArrayVar(&f.Groups, "group", nil, "sum up by NAME what --focus with this REGEXP would show, as `NAME=REGEXP`; may be repeated, the first that matches counts")
	const heading = "Which memory"
	cli.Heading(cmd, heading, "focus", "ignore", "kind", "section", "older", "group")
	cli.Complete(cmd, "kind", append(kinds(), unknownKind)...)
	for _, name := range []string{"focus", "ignore", "section", "older", "group"} {
		cli.Complete(cmd, name)
	}
}

// check parses the regular expressions.
func (f *filter) check() (err error) {
	if f.focus, err = expression("focus", f.Focus); err != nil {
		return err
	}
	if f.ignore, err = expression("ignore", f.Ignore); err != nil {
		return err
	}
	if f.Older < 0 {
		return cli.UsageError("--older cannot be negative")
	}
	for _, word := range f.Groups {
		name, text, ok := strings.Cut(word, "=")
		if !ok || name == "" || text == "" {
			return cli.UsageError("--group %q: want NAME=REGEXP, such as attention='attn|Attention'", word)
		}
		calls, err := expression("group", text)
		if err != nil {
			return err
		}
		f.groups = append(f.groups, group{name, calls})
	}
	return nil
}

func expression(flag, text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, cli.UsageError("--%s %q: %w: want a regular expression, such as 'attention|mlp'; a \\ before a character takes it as it is", flag, text, err)
	}
	return re, nil
}

// any reports whether the filter leaves anything out or groups anything.
func (f *filter) any() bool {
	return f.focus != nil || f.ignore != nil || len(f.Kinds)+len(f.Sections)+len(f.groups) > 0 || f.Older > 0
}

// asked returns the filter for JSON, or nil if nothing is asked for.
func (f *filter) asked() *filter {
	if !f.any() {
		return nil
	}
	return f
}

// of returns the rows that pass the filter. Rows in a group have its name as their label. It does
// not change the given rows.
func (f *filter) of(rows []export.Row) []export.Row {
	focus, ignore := matcher(f.focus), matcher(f.ignore)
	groups := make([]func(mem.Stack) bool, len(f.groups))
	for i, g := range f.groups {
		groups[i] = matcher(g.calls)
	}
	var out []export.Row
	for _, r := range rows {
		switch {
		case f.focus != nil && !focus(r.Stack), f.ignore != nil && ignore(r.Stack):
		case len(f.Kinds) > 0 && !slices.ContainsFunc(f.Kinds, func(k string) bool { return strings.EqualFold(k, kindOf(r)) }):
		case len(f.Sections) > 0 && !slices.ContainsFunc(f.Sections, func(s string) bool { return within(sectionOf(r), s) }):
		default:
			if len(groups) > 0 {
				r.Label = "no group"
				if i := slices.IndexFunc(groups, func(its func(mem.Stack) bool) bool { return its(r.Stack) }); i >= 0 {
					r.Label = f.groups[i].name
				}
			}
			out = append(out, r)
		}
	}
	return out
}

// matcher returns a function that reports whether a frame of a stack matches: its function, its
// file, or both as a table prints them. It tests each frame once, however many stacks have it. An
// unknown stack has one unknown frame.
func matcher(re *regexp.Regexp) func(mem.Stack) bool {
	known := make(map[mem.Frame]bool)
	matches := func(f mem.Frame) bool {
		found, ok := known[f]
		if !ok {
			found = re.MatchString(f.Function) || re.MatchString(f.File) || re.MatchString(f.String())
			known[f] = found
		}
		return found
	}
	return func(s mem.Stack) bool {
		if len(s) == 0 {
			return matches(mem.Frame{})
		}
		return slices.ContainsFunc(s, matches)
	}
}

const (
	unknownKind = "unknown"
	noSection   = "no section"
)

// kinds returns the names of the kinds that every tracker knows.
func kinds() (names []string) {
	for _, k := range mem.Kinds() {
		names = append(names, k.String())
	}
	return names
}

func kindOf(r export.Row) string    { return cmp.Or(r.Kind, unknownKind) }
func sectionOf(r export.Row) string { return cmp.Or(r.Section, noSection) }

// within reports whether a section is of, or is inside it.
func within(path, of string) bool { return path == of || strings.HasPrefix(path, of+"/") }

// nameSets are the kinds and sections that occur in files.
type nameSets struct{ kinds, sections map[string]bool }

func newNameSets() nameSets { return nameSets{make(map[string]bool), make(map[string]bool)} }

func (s nameSets) add(rows []export.Row) {
	for _, r := range rows {
		s.kinds[kindOf(r)], s.sections[sectionOf(r)] = true, true
	}
}

func (s nameSets) join(other nameSets) {
	maps.Copy(s.kinds, other.kinds)
	maps.Copy(s.sections, other.sections)
}

// unknown returns an error for a kind or section that no file has: most likely it is misspelt. A
// kind that every tracker knows may be absent from a file that has kinds.
func (f *filter) unknown(files nameSets) error {
	hasKinds := len(files.kinds) > 1 || !files.kinds[unknownKind]
	for _, kind := range f.Kinds {
		same := func(k string) bool { return strings.EqualFold(k, kind) }
		if !has(files.kinds, same) && !(hasKinds && slices.ContainsFunc(kinds(), same)) {
			return cli.UsageError("--kind %q: no memory has that kind: want one of %s", kind, some(files.kinds))
		}
	}
	for _, section := range f.Sections {
		if !has(files.sections, func(s string) bool { return within(s, section) }) {
			return cli.UsageError("--section %q: no memory is of that section: want one of %s", section, some(files.sections))
		}
	}
	return nil
}

func has(set map[string]bool, is func(string) bool) bool {
	for word := range set {
		if is(word) {
			return true
		}
	}
	return false
}

// some lists names. Of many it lists the first few.
func some(set map[string]bool) string {
	const most = 12
	all := slices.Sorted(maps.Keys(set))
	if more := len(all) - most; more > 0 {
		all = append(all[:most], fmt.Sprintf("%d more", more))
	}
	return strings.Join(all, ", ")
}
