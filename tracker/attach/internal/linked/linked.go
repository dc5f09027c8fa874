// Package linked finds the files that the dynamic loader will load with a program: those that the program
// needs, and those that they need in turn. It searches where glibc's loader searches. Of a library in
// several builds for different processors it finds all. It runs nothing, and reads no memory of the
// process but its environment.
package linked

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Program is a program that runs or will run.
type Program struct {
	Root    string // its root directory, seen from outside
	file    string // its file, seen from outside
	path    string // its file, seen from inside
	working string
	env     []string
}

// OfProcess returns the program of a process.
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

// OfCommand returns the program in a file, as it will run in a working directory and an environment.
func OfCommand(file, working string, env []string) Program {
	path, err := filepath.Abs(filepath.Join(working, file))
	if filepath.IsAbs(file) {
		path = file
	}
	if resolved, linkErr := filepath.EvalSymlinks(path); err == nil && linkErr == nil {
		path = resolved // as the loader resolves it for $ORIGIN
	}
	return Program{Root: "/", file: path, path: path, working: working, env: env}
}

// Libraries returns the paths of the libraries that a program is linked with, seen from inside. It is empty
// if the process has ended, or its program is statically linked.
func (p Program) Libraries() []string {
	s := loaderSearch{root: p.Root, working: p.working, asked: make(map[string]bool)}
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

// loaderSearch is a search for the libraries of one program.
type loaderSearch struct {
	root    string // the process's root directory, seen from outside
	working string
	given   []string // LD_LIBRARY_PATH
	cache   Cache
	machine elf.Machine
	asked   map[string]bool // by name: the loader searches for each once
}

// object is the program or a library.
type object struct {
	path           string
	needed         []string
	rpath, runpath []string
	by             *object // the object that needs it; nil of the program
}

const maxFiles = 1 << 10

// all returns the files that a program needs, in the order in which the loader loads them.
func (s *loaderSearch) all(program *object) (files []string) {
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

// open reads the dynamic section of a file; nil if it has none, or is for another machine than the
// program.
func (s *loaderSearch) open(file, path string, by *object) *object {
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
		o.rpath = nil // the loader ignores DT_RPATH if there is DT_RUNPATH
	}
	return o
}

// folders expands a search path of a file.
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
	libFolders = []string{"lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"} // possible values of $LIB
	builds     = []string{"glibc-hwcaps/x86-64-v4", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v2", ""}
)

// find returns the files that the loader may load for a name: those in the first folder with one.
func (s *loaderSearch) find(name string, by *object) (all []*object) {
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

// in returns the builds of a library in a folder.
func in(folder, name string) (all []string) {
	for _, build := range builds {
		all = append(all, filepath.Join(folder, build, name))
	}
	return all
}

// Folders are the default folders of the loaders of distributions.
var Folders = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"}

// Cache is the files of the 64-bit libraries that ldconfig found, by name, such as libcuda.so.1.
type Cache map[string][]string

// ReadCache reads /etc/ld.so.cache or a copy of it: a header, an entry of fixed size for each library, and the texts that these point to
// (sysdeps/generic/dl-cache.h in glibc). It is empty if there is no such file.
func ReadCache(file string) Cache {
	const (
		magic              = "glibc-ld.so.cache1.1"
		header, entry      = 48, 24
		offName, offPath   = 4, 8
		whichArchitecture  = 0xff00
		x86, arm           = 0x0300, 0x0a00 // of 64 bits
		maxCache, maxFound = 64 << 20, 1 << 20
	)
	text, err := os.ReadFile(file)
	if err != nil || len(text) > maxCache {
		return nil
	}
	text = text[max(0, bytes.Index(text, []byte(magic))):] // after the old form, if it has both
	if len(text) < header || !bytes.HasPrefix(text, []byte(magic)) {
		return nil
	}
	word := func(at int) uint32 { return binary.NativeEndian.Uint32(text[at:]) }
	its := make(Cache)
	for i := range int(min(word(len(magic)), maxFound)) {
		at := header + entry*i
		if at+entry > len(text) {
			break
		}
		if which := word(at) & whichArchitecture; which != x86 && which != arm {
			continue
		}
		if name := textAt(text, word(at+offName)); name != "" {
			its[name] = append(its[name], textAt(text, word(at+offPath)))
		}
	}
	return its
}

// textAt returns the zero-terminated text at an offset.
func textAt(all []byte, at uint32) string {
	if uint64(at) >= uint64(len(all)) {
		return ""
	}
	text, _, _ := bytes.Cut(all[at:], []byte{0})
	return string(text)
}

// Versions returns the files beside lib.so named lib.so.1 and the like: usually links to it, in Python's
// packages copies.
func Versions(library string) []string {
	all, _ := filepath.Glob(escaped.Replace(library) + ".[0-9]*") // the pattern is well formed
	return all
}

var escaped = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)

// DefaultLibraries returns the files of a name, and its versions, in the dynamic loader's search path.
func DefaultLibraries(library string) (all []string) {
	for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		all = append(append(all, filepath.Join(dir, library)), Versions(filepath.Join(dir, library))...)
	}
	for name, paths := range ReadCache("/etc/ld.so.cache") {
		if name == library || strings.HasPrefix(name, library+".") {
			all = append(all, paths...)
		}
	}
	for _, dir := range slices.Concat(Folders, []string{"/usr/lib/wsl/lib", "/usr/local/nvidia/lib64"}) {
		all = append(append(all, filepath.Join(dir, library)), Versions(filepath.Join(dir, library))...)
	}
	return all
}
