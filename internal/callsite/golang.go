package callsite

import "strings"

// goRuntime begins goroutines (runtime.goexit), panics and runs cleanups.
const goRuntime = "runtime"

func (r Rule) rankGo(function string) Rank {
	function = ImportPath(function)
	if within(function, goRuntime) {
		return Nobody
	}
	for _, library := range r.Go {
		if within(function, library) {
			return Library
		}
	}
	return User
}

// within reports whether a Go function belongs to a package at or below the import
// path. A package's external tests ("path_test") do not.
func within(function, path string) bool {
	rest, ok := strings.CutPrefix(function, path)
	return ok && rest != "" && (rest[0] == '.' || rest[0] == '/')
}

// ImportPath is a Go function's name as the source has it: the linker writes a dot of
// a path's last element as %2e, as in "gopkg.in/yaml%2ev3.Load".
func ImportPath(function string) string { return strings.ReplaceAll(function, "%2e", ".") }
