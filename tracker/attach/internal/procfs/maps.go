// Package procfs reads what Linux says about a process in /proc.
package procfs

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Mapping is an executable mapping of a process.
type Mapping struct {
	Start, End, Offset uint64
	Device             string
	Inode              uint64
	Path               string // "" if it is not of a file
	Outside            string // another path of the file, as this process sees it; "" if none is known
}

// IsFile reports whether the mapping is of a file.
func (m Mapping) IsFile() bool { return m.Inode != 0 && strings.HasPrefix(m.Path, "/") }

// ReadMaps returns the mappings with code of a process, by address.
func ReadMaps(pid int) ([]Mapping, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	return ParseMaps(text), nil
}

// ParseMaps reads the mappings with code from the text of /proc/PID/maps, of lines such as
//
//	7f1329200000-7f1329355000 r-xp 00026000 fe:00 4242    /usr/lib/libc.so.6
func ParseMaps(text []byte) (all []Mapping) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 || !strings.Contains(fields[1], "x") {
			continue
		}
		var m Mapping
		from, to, _ := strings.Cut(fields[0], "-")
		var errs [4]error
		m.Start, errs[0] = strconv.ParseUint(from, 16, 64)
		m.End, errs[1] = strconv.ParseUint(to, 16, 64)
		m.Offset, errs[2] = strconv.ParseUint(fields[2], 16, 64)
		m.Inode, errs[3] = strconv.ParseUint(fields[4], 10, 64)
		if slices.ContainsFunc(errs[:], func(err error) bool { return err != nil }) {
			continue
		}
		m.Device = fields[3]
		if len(fields) > 5 {
			m.Path = strings.TrimSuffix(strings.Join(fields[5:], " "), " (deleted)")
		}
		all = append(all, m)
	}
	return all
}

// Find returns the mapping of an address.
func Find(all []Mapping, address uint64) (Mapping, bool) {
	i, ok := slices.BinarySearchFunc(all, address, func(m Mapping, a uint64) int {
		if a >= m.End {
			return -1
		}
		return cmp.Compare(max(m.Start, a), a)
	})
	if !ok {
		return Mapping{}, false
	}
	return all[i], true
}

// Maps is the code of a process.
type Maps struct {
	All    []Mapping
	Linked []Mapping // those that stay as long as the program runs, as far as known
}

// InRoot returns the path, outside of a process's container, of a file with a path inside.
func InRoot(pid int, path string) string { return fmt.Sprintf("/proc/%d/root%s", pid, path) }

// HasEnded reports whether a process has exited. It may still be a zombie.
func HasEnded(pid int) bool {
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err != nil
}

// Processes returns the numbers of all processes.
func Processes() (all []int) {
	folder, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer folder.Close()
	names, _ := folder.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// Descendants returns the process tree below a process.
func Descendants(pid int) (all []int) {
	children := make(map[int][]int)
	for _, child := range Processes() {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 1 {
			parent, _ := strconv.Atoi(fields[1])
			children[parent] = append(children[parent], child)
		}
	}
	todo := children[pid]
	for len(todo) > 0 {
		all, todo = append(all, todo[0]), append(todo[1:], children[todo[0]]...)
	}
	return all
}
