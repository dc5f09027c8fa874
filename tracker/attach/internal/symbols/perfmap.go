package symbols

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// perfMap is the file in which a program names its generated code: python -X perf, node, java.
type perfMap struct {
	pid   int
	size  int64
	names []named
}

const maxPerfMap = 64 << 20 // bytes of the file that are read

func (p *perfMap) frame(address uint64) (mem.Frame, bool) {
	n, ok := findNamed(p.names, address)
	if !ok {
		p.reload()
		if n, ok = findNamed(p.names, address); !ok {
			return mem.Frame{}, false
		}
	}
	// Python's: py::train:/home/me/train.py
	if rest, ok := strings.CutPrefix(n.name, "py::"); ok {
		if function, file, ok := strings.Cut(rest, ":"); ok {
			return mem.Frame{Function: function, File: file}, true
		}
	}
	return mem.Frame{Function: n.name}, true
}

// reload reads the file again if it has grown.
func (p *perfMap) reload() {
	for _, name := range []string{procfs.InRoot(p.pid, fmt.Sprintf("/tmp/perf-%d.map", innerPID(p.pid))), fmt.Sprintf("/tmp/perf-%d.map", p.pid)} {
		info, err := os.Stat(name)
		if err != nil || info.Size() == p.size || info.Size() > maxPerfMap {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		p.size, p.names = info.Size(), parsePerfMap(string(text))
		return
	}
}

// parsePerfMap reads lines of start, size (both in hexadecimal) and name. Later lines win.
func parsePerfMap(text string) (all []named) {
	for line := range strings.Lines(text) {
		var n named
		var size uint64
		if _, err := fmt.Sscanf(line, "%x %x", &n.start, &size); err != nil {
			continue
		}
		if fields := strings.SplitN(strings.TrimSpace(line), " ", 3); len(fields) == 3 {
			n.end, n.name = n.start+size, fields[2]
			all = append(all, n)
		}
	}
	sortNamed(all)
	return all
}

// innerPID returns the process ID in the process's own namespace.
func innerPID(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return pid
	}
	_, rest, _ := strings.Cut(string(status), "NSpid:")
	line, _, _ := strings.Cut(rest, "\n")
	inner := pid
	for field := range strings.FieldsSeq(line) {
		fmt.Sscan(field, &inner)
	}
	return inner
}

// named is a part of a program's code that has a name.
type named struct {
	start, end uint64
	name       string
}

func sortNamed(all []named) {
	slices.SortStableFunc(all, func(a, b named) int {
		switch {
		case a.start < b.start:
			return -1
		case a.start > b.start:
			return 1
		}
		return 0
	})
}

// findNamed returns the last entry that begins at or before the address, if it reaches that far.
func findNamed(all []named, address uint64) (named, bool) {
	i, _ := slices.BinarySearchFunc(all, address, func(n named, a uint64) int {
		if n.start <= a {
			return -1
		}
		return 1
	})
	if i == 0 || address >= all[i-1].end {
		return named{}, false
	}
	return all[i-1], true
}
