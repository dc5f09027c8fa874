// Package linked finds the files that the dynamic loader loads with a program, before it has: what the program names, and what these
// files name in turn. It looks where the loader of the GNU C library looks. Of a library in several builds for different
// processors it finds all. It runs nothing, and reads no memory of the process but its environment.
package linked

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Program is a program that runs, or that will.
type Program struct {
	Root    string // the folder where its files are found from outside
	file    string // its own file, from outside
	path    string // and as it names it
	working string
	env     []string
}

// OfProcess returns the program that a process runs.
func OfProcess(pid int) Program {
	at := func(name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }
	p := Program{Root: at("root"), file: at("exe")}
	p.path, _ = os.Readlink(at("exe"))
	p.path = strings.TrimSuffix(p.path, " (deleted)")
	p.working, _ = os.Readlink(at("cwd"))
	text, _ := os.ReadFile(at("environ"))
	p.env = strings.Split(string(text), "\x00")
	return p
}

// OfCommand returns the program in a file, as it will run in a folder and an environment.
func OfCommand(file, working string, env []string) Program {
	path, err := filepath.Abs(filepath.Join(working, file))
	if filepath.IsAbs(file) {
		path = file
	}
	if real, realErr := filepath.EvalSymlinks(path); err == nil && realErr == nil {
		path = real // as the loader sees it, to which $ORIGIN is a folder
	}
	return Program{Root: "/", file: path, path: path, working: working, env: env}
}

// Libraries returns the libraries that a program is linked with, as it names them: with the folder that the loader finds them in. It
// is empty if the process has ended, or its program is not linked with any.
func (p Program) Libraries() []string {
	s := search{root: p.Root, working: p.working, asked: make(map[string]bool)}
	program := s.open(p.file, p.path, nil)
	if program == nil || len(program.needed) == 0 {
		return nil
	}
	for _, variable := range p.env {
		switch name, value, _ := strings.Cut(variable, "="); name {
		case "LD_LIBRARY_PATH":
			s.given = strings.FieldsFunc(value, func(r rune) bool { return r == ':' || r == ';' })
		case "LD_PRELOAD":
			program.needed = append(program.needed, strings.FieldsFunc(value, func(r rune) bool { return r == ':' || r == ' ' })...)
		}
	}
	s.cache = ReadCache(filepath.Join(s.root, "etc/ld.so.cache"))
	return s.all(program)
}

// search is a search for the libraries of one program.
type search struct {
	root    string // where the process's files are found from outside
	working string
	given   []string // by the environment
	cache   Cache
	machine elf.Machine
	asked   map[string]bool // by name: the loader looks for each once
}

// object is the program or a library.
type object struct {
	path           string
	needed         []string
	rpath, runpath []string
	by             *object // which needs it; nil for the program
}

const maxFiles = 1 << 10

// all returns the files that a program needs, in the order in which the loader loads them.
func (s *search) all(program *object) (files []string) {
	for queue := []*object{program}; len(queue) > 0 && len(files) < maxFiles; queue = queue[1:] {
		for _, name := range queue[0].needed {
			if s.asked[name] {
				continue
			}
			s.asked[name] = true
			for _, library := range s.find(name, queue[0]) {
				files, queue = append(files, library.path), append(queue, library)
			}
		}
	}
	return files
}

// open reads what a file says of its libraries; nil if it is no such file, or is for another machine than the program.
func (s *search) open(file, path string, by *object) *object {
	f, err := elf.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	if by == nil {
		s.machine = f.Machine
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != s.machine {
		return nil
	}
	o := &object{path: path, by: by}
	o.needed, _ = f.DynString(elf.DT_NEEDED)
	o.rpath, o.runpath = folders(f, elf.DT_RPATH, path), folders(f, elf.DT_RUNPATH, path)
	if len(o.runpath) > 0 {
		o.rpath = nil // the loader ignores it then
	}
	return o
}

// folders returns what a file says of where its libraries are.
func folders(f *elf.File, tag elf.DynTag, path string) (all []string) {
	texts, _ := f.DynString(tag)
	for _, text := range texts {
		for folder := range strings.SplitSeq(text, ":") {
			for _, lib := range libFolders {
				r := strings.NewReplacer("$ORIGIN", filepath.Dir(path), "${ORIGIN}", filepath.Dir(path), "$LIB", lib, "${LIB}", lib)
				if its := r.Replace(folder); !slices.Contains(all, its) {
					all = append(all, its)
				}
			}
		}
	}
	return all
}

var (
	libFolders = []string{"lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"} // what $LIB may stand for
	builds     = []string{"glibc-hwcaps/x86-64-v4", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v2", ""}
)

// find returns the files that the loader may take for a name: those in the first folder that has one.
func (s *search) find(name string, by *object) (all []*object) {
	try := func(paths ...string) bool {
		for _, path := range paths {
			if !filepath.IsAbs(path) {
				path = filepath.Join(s.working, path)
			}
			if o := s.open(filepath.Join(s.root, path), path, by); o != nil {
				all = append(all, o)
			}
		}
		return len(all) > 0
	}
	if strings.Contains(name, "/") {
		try(name)
		return all
	}
	var first []string
	if len(by.runpath) == 0 {
		for o := by; o != nil; o = o.by {
			first = append(first, o.rpath...)
		}
	}
	for _, folder := range slices.Concat(first, s.given, by.runpath) {
		if try(in(folder, name)...) {
			return all
		}
	}
	if try(s.cache[name]...) {
		return all
	}
	for _, folder := range Folders {
		if try(in(folder, name)...) {
			return all
		}
	}
	return nil
}

// in returns the builds of a library that a folder may have.
func in(folder, name string) (all []string) {
	for _, build := range builds {
		all = append(all, filepath.Join(folder, build, name))
	}
	return all
}

// Folders are where the loaders of distributions look last.
var Folders = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"}
