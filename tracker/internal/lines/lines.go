// Package lines names the lines of code of a process and identifies its call stacks. It reads no
// file and no program: a line is what its frame says.
package lines

import (
	"iter"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Names names lines of code: "main.go:12 main.load", with as many folders
// of the file as distinguish lines that would have the same name. The zero value adds no
// folders.
type Names struct {
	folders map[string]int // number of folders to show for a short name, if it needs any
	known   map[mem.Frame]string
}

// NewNames returns the names for the lines of some processes. Only lines of
// one process can be distinguished: two processes may have been built in different folders.
func NewNames(processes ...iter.Seq[mem.Frame]) *Names {
	n := &Names{folders: make(map[string]int), known: make(map[mem.Frame]string)}
	for _, frames := range processes {
		same := make(map[string][]mem.Frame)
		seen := make(map[mem.Frame]bool)
		for f := range frames {
			if !seen[f] {
				seen[f] = true
				name := f.String()
				same[name] = append(same[name], f)
			}
		}
		for name, frames := range same {
			if folders := distinguishingFolders(frames); folders > n.folders[name] {
				n.folders[name] = folders
			}
		}
	}
	return n
}

// distinguishingFolders returns the number of folders with which the files' names differ; 0 if they
// never do.
func distinguishingFolders(frames []mem.Frame) int {
	most := 0
	for _, f := range frames {
		most = max(most, strings.Count(callsite.Slashed(f.File), "/"))
	}
	for folders := 0; folders <= most; folders++ {
		names := make(map[string]bool, len(frames))
		for _, f := range frames {
			names[ending(f.File, folders)] = true
		}
		if len(names) == len(frames) {
			return folders
		}
	}
	return 0
}

// ending returns a file's name with that many folders before it.
func ending(file string, folders int) string {
	file = callsite.Slashed(file)
	at := len(file)
	for i := 0; i <= folders && at >= 0; i++ {
		at = strings.LastIndexByte(file[:at], '/')
	}
	return file[at+1:]
}

// Of returns a line's name; "unknown" of a zero Frame. It is for one goroutine at a
// time.
func (n *Names) Of(f mem.Frame) string {
	if name, ok := n.known[f]; ok {
		return name
	}
	name := f.String()
	if folders := n.folders[name]; folders > 0 {
		name = strings.TrimSuffix(ending(f.File, folders), callsite.Base(f.File)) + name
	}
	if n.known != nil {
		n.known[f] = name
	}
	return name
}

// StackID identifies a stack among those of one tracker or one file, which share the frames of
// equal stacks. The zero StackID is the empty stack.
type StackID struct {
	first *mem.Frame
	depth int
}

// Identify returns the stack's identity.
func Identify(s mem.Stack) StackID {
	if len(s) == 0 {
		return StackID{}
	}
	return StackID{&s[0], len(s)}
}
