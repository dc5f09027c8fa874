package linked

import (
	"bytes"
	"encoding/binary"
	"os"
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
