package symbols

import (
	"debug/elf"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ianlancetaylor/demangle"
)

// Offsets returns the offset in the file of each function that a library exports. With names it returns
// the functions with these names, exported or not: those of C++ and Rust as in the source, without
// parameters, or mangled.
func Offsets(path string, names []string) (map[string]uint64, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if len(names) > 0 {
		if more, _ := f.Symbols(); more != nil { // a stripped file has none
			symbols, err = append(more, symbols...), nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	its, at := layoutOf(f), make(map[string]uint64)
	wanted := wantedNames(names)
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC {
			continue
		}
		offset, ok := its.offset(s.Value)
		switch {
		case !ok:
		case len(names) == 0:
			at[s.Name] = offset
		default:
			if name, ok := wanted.of(s.Name); ok {
				at[name] = offset
			}
		}
	}
	return at, nil
}

// wantedName is a name to find, and a word that all its mangled forms contain.
type wantedName struct{ name, word string }

type nameList []wantedName

var lastWord = regexp.MustCompile(`[A-Za-z0-9_]+$`)

func wantedNames(names []string) (all nameList) {
	for _, name := range names {
		its := wantedName{name: name}
		if !strings.Contains(name, "operator") { // whose mangled form is another word
			its.word = lastWord.FindString(name)
		}
		all = append(all, its)
	}
	return all
}

// of returns the name that a symbol has. A library may have a hundred thousand symbols: only those with
// the word are demangled.
func (all nameList) of(symbol string) (string, bool) {
	readable := ""
	i := slices.IndexFunc(all, func(w wantedName) bool {
		if symbol == w.name {
			return true
		}
		if strings.HasSuffix(symbol, ".cold") || !strings.Contains(symbol, w.word) { // .cold is not the start of a function
			return false
		}
		if readable == "" {
			readable = demangle.Filter(symbol, demangle.NoParams, demangle.NoTemplateParams)
		}
		return readable == w.name
	})
	if i < 0 {
		return "", false
	}
	return all[i].name, true
}
