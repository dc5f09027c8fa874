package symbols

import (
	"debug/elf"
	"fmt"
	"strings"

	"github.com/ianlancetaylor/demangle"
)

// Offsets returns the offset in the file of each function that a library exports. With all it also
// returns functions that are not exported, and those of C++ and Rust by their readable names too.
func Offsets(path string, all bool) (map[string]uint64, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if all {
		if more, _ := f.Symbols(); more != nil { // a stripped file has none
			symbols, err = append(more, symbols...), nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	at := make(map[string]uint64)
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC {
			continue
		}
		for _, seg := range f.Progs {
			if seg.Type == elf.PT_LOAD && seg.Flags&elf.PF_X != 0 && seg.Vaddr <= s.Value && s.Value < seg.Vaddr+seg.Memsz {
				at[s.Name] = s.Value - seg.Vaddr + seg.Off
				if all && !strings.HasSuffix(s.Name, ".cold") { // a part of a function, where it does not begin
					at[demangle.Filter(s.Name, demangle.NoParams, demangle.NoTemplateParams)] = at[s.Name]
				}
			}
		}
	}
	return at, nil
}
