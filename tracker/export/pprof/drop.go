package pprof

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
)

// passedOver returns a regular expression for the functions that lie below a call site in every
// stack: those of allocators, of libraries, and of capturing a stack. pprof drops a function
// together with all that it called. So a function that is a call site, or calls one in any stack,
// must not be named.
func passedOver(u *export.Usage) string {
	within := make(map[string]bool)
	seen := make(map[lines.StackID]bool)
	for i := range u.Rows {
		r := &u.Rows[i]
		id := lines.Identify(r.Stack)
		if seen[id] {
			continue
		}
		seen[id] = true
		site := max(0, slices.Index(r.Stack, r.CallSite))
		for i, f := range r.Stack {
			name := simple(f.Function)
			if known, ok := within[name]; i >= site || !ok || known {
				within[name] = i < site
			}
		}
	}
	delete(within, "")
	var names []string
	for _, name := range slices.Sorted(maps.Keys(within)) {
		if within[name] {
			names = append(names, regexp.QuoteMeta(name))
		}
	}
	return strings.Join(names, "|")
}

// simple is a function's name as pprof compares it: without the arguments of C++.
func simple(function string) string {
	function = strings.TrimPrefix(function, ".")
	for i := 0; i < len(function); i++ {
		if function[i] != '(' {
			continue
		}
		reserved := false
		for _, name := range []string{"(anonymous namespace)", "operator()"} {
			at := i - strings.IndexByte(name, '(')
			if at >= 0 && strings.HasPrefix(function[at:], name) {
				i, reserved = at+len(name)-1, true
				break
			}
		}
		if !reserved {
			return function[:i]
		}
	}
	return function
}
