package linked

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

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
