// Package hostmem says how much of the machine's main memory a program can still have.
package hostmem

import (
	"bufio"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// Available returns the bytes of memory that this process can have without swapping: those of the machine, or fewer if the
// process is in a control group with a limit. ok is false on systems other than Linux, and where /proc is not mounted.
func Available() (bytes int64, ok bool) { return available(os.DirFS("/")) }

func available(root fs.FS) (int64, bool) {
	most, ok := field(root, "proc/meminfo", "MemAvailable:")
	if !ok || most > math.MaxInt64/1024 {
		return 0, false
	}
	most *= 1024 // the kernel's "kB" are KiB
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return most, true
	}
	for line := range strings.Lines(string(text)) {
		// number:controllers:path. Version 2 has one line, without controllers.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[1] == "":
			most = version2.within(root, parts[2], most)
		case strings.Contains(","+parts[1]+",", ",memory,"):
			most = version1.within(root, parts[2], most)
		}
	}
	return most, true
}

// hierarchy is how a version of control groups names its files.
type hierarchy struct{ mount, limit, used, cache string }

// Both count the page cache as used. What of it is inactive is given up before the limit is reached.
var (
	version1 = hierarchy{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
	version2 = hierarchy{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"}
)

// within returns the least of most and what a group and those around it have left. A container may see its group at the
// root, under whatever path: groups that do not exist here count as without a limit.
func (h hierarchy) within(root fs.FS, group string, most int64) int64 {
	for dir := path.Clean("/" + group); ; dir = path.Dir(dir) {
		at := path.Join(h.mount, dir)
		if limit, ok := number(root, path.Join(at, h.limit)); ok {
			used, _ := number(root, path.Join(at, h.used))
			cache, _ := field(root, path.Join(at, "memory.stat"), h.cache)
			most = min(most, max(0, limit-max(0, used-cache)))
		}
		if dir == "/" {
			return most
		}
	}
}

// number reads a file that holds one number. It is not ok for the word "max".
func number(root fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil && n >= 0
}

// field reads the number behind a word at the beginning of a line.
func field(root fs.FS, name, word string) (int64, bool) {
	f, err := root.Open(name)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) >= 2 && words[0] == word {
			n, err := strconv.ParseInt(words[1], 10, 64)
			return n, err == nil && n >= 0
		}
	}
	return 0, false
}
