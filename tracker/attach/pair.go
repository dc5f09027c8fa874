package attach

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Pair is two functions of a library that hand out memory and take it back, to be watched in
// place of the driver's: an allocator inside a library. Arguments are counted from 1; of a
// method the first is the object.
type Pair struct {
	// Library is a file's path, or its name as "libpool.so", which stands for
	// "libpool.so.1" too. It may be the program itself. A library given by its name is found
	// where the loader would, or when a process has loaded it.
	Library string
	// Alloc and Free are the names of the functions, as in the library's symbol table, or
	// for C++ and Rust as in the source without parameters: "arena::Pool::take".
	Alloc, Free string
	Size        int // the argument of Alloc that has the bytes
	Out         int // the argument of Alloc that points to where it writes the address; 0: it returns the address
	Address     int // the argument of Free that has the address
}

// ParsePair reads
//
//	libpool.so:pool_alloc,pool_free
//	libpool.so:pool_alloc(size=2,out=3),pool_free(address=2)
//
// where size and address are the first argument and the address is returned if nothing else
// is said. The error says which part cannot be read.
func ParsePair(text string) (Pair, error) {
	p := Pair{Size: 1, Address: 1}
	m := pairText.FindStringSubmatch(text)
	if m == nil {
		return Pair{}, fmt.Errorf("functions %q: want LIBRARY:ALLOC,FREE, such as libpool.so:pool_alloc(size=2,out=3),pool_free(address=2)", text)
	}
	p.Library, p.Alloc, p.Free = m[1], m[2], m[4]
	for _, it := range []struct {
		text string
		may  map[string]*int
	}{{m[3], map[string]*int{"size": &p.Size, "out": &p.Out}}, {m[5], map[string]*int{"address": &p.Address}}} {
		if err := readArguments(it.text, it.may); err != nil {
			return Pair{}, fmt.Errorf("functions %q: %w", text, err)
		}
	}
	return p, p.check()
}

var pairText = regexp.MustCompile(`^([^:,()]+):([^,()]+)(?:\(([^()]*)\))?,([^,()]+)(?:\(([^()]*)\))?$`)

// readArguments reads a list such as size=2,out=3.
func readArguments(text string, may map[string]*int) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for item := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(strings.TrimSpace(item), "=")
		to, ok := may[name]
		n, err := strconv.Atoi(number)
		if !ok || err != nil || n < 1 {
			return fmt.Errorf("%q: want size=N and out=N of the function that allocates, address=N of the one that frees, N from 1", item)
		}
		*to = n
	}
	return nil
}

func (p Pair) check() error {
	for _, n := range []int{p.Size, p.Address, max(1, p.Out)} {
		if n < 1 || n > maxArguments {
			return fmt.Errorf("functions of %s: argument %d: the first %d arguments can be read", p.Library, n, maxArguments)
		}
	}
	if p.Library == "" || p.Alloc == "" || p.Free == "" || p.Alloc == p.Free || p.Out == p.Size {
		return fmt.Errorf("functions of %q: %q and %q: want a library and two functions, and a size and an address apart", p.Library, p.Alloc, p.Free)
	}
	return nil
}

// maxArguments are those that come in registers.
const maxArguments = 6
