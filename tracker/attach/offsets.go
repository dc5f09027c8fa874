package attach

import (
	"debug/elf"
	"fmt"

	"github.com/ianlancetaylor/demangle"
)

// symbolOffsets returns where in the file the functions are that a library exports; if all,
// also those that it does not, and under their names in C++ and Rust too.
func symbolOffsets(path string, all bool) (map[string]uint64, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if all {
		if more, _ := f.Symbols(); more != nil { // stripped, if there are none
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
				if all {
					at[demangle.Filter(s.Name, demangle.NoParams, demangle.NoTemplateParams)] = at[s.Name]
				}
			}
		}
	}
	return at, nil
}
