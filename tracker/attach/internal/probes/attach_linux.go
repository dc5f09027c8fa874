//go:build amd64 || arm64

package probes

import (
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/cilium/ebpf/link"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
)

// Uprobes are attached to functions, found by their symbols, and to static probes (USDT), found by the
// notes of a file.

// place is where a program is attached in a file.
type place struct {
	offset     uint64
	attachedTo uint32 // the index of the function, or of the static probe; see atInstructions
	semaphore  uint64 // of a static probe; 0 if there is none
}

// atInstructions marks the places of a function whose returns are probed at its instructions: AT_INSTRUCTIONS in common.h.
const atInstructions = 1 << 31

// ProbeLibrary probes the functions of a file, for all processes that have loaded it or will. The
// functions are the driver's, or those of a library that Config.Functions names.
func (s *Source) ProbeLibrary(path, library string) error {
	s.files++
	if library == event.Loader {
		return s.probeLoader(path)
	}
	var names []string
	for _, f := range s.functions {
		if library != "" && f.Library == library {
			names = append(names, f.Symbols...)
		}
	}
	at, err := symbols.Functions(path, names)
	if err != nil {
		return err
	}
	file, err := link.OpenExecutable(path)
	if err != nil {
		return err
	}
	static, err := symbols.Notes(path)
	if err != nil {
		return err
	}
	code, err := os.Open(path)
	if err != nil {
		return err
	}
	defer code.Close()
	var enter, leave, returns, notes []place
	seen := make(map[uint64]bool) // offsets: a function may have several names
	for i, f := range s.functions {
		if f.Library != library || f.Without != "" && static[f.Without] != nil {
			continue
		}
		if f.Note != "" {
			its, err := s.placesOfNotes(i, static[f.Note])
			if err != nil {
				return fmt.Errorf("static probe %s of %s: %w", f.Note, path, err)
			}
			notes = append(notes, its...)
			continue
		}
		found := false
		for _, name := range f.Symbols {
			function := at[name]
			offset := function.Offset
			found = found || offset != 0
			if offset == 0 || seen[offset] {
				continue
			}
			seen[offset] = true
			its := place{offset: cheapest(code, offset), attachedTo: uint32(i)}
			switch {
			case f.Effect.EntryOnly():
			case function.Unwinds:
				its.attachedTo |= atInstructions
				left, err := symbols.Returns(path, offset)
				if err != nil {
					return fmt.Errorf("%s cannot be watched: %w. A return probe of the kernel would end the program when an exception passes "+
						"through: name a function that it calls, or one that calls it", name, err)
				}
				for _, offset := range left {
					returns = append(returns, place{offset: offset, attachedTo: its.attachedTo})
				}
			default:
				leave = append(leave, its)
			}
			enter = append(enter, its)
		}
		if !found && library != "" {
			return fmt.Errorf("%s has no function %s: it needs a symbol of that name, that is not inlined", path, f.Symbols[0])
		}
	}
	if len(enter)+len(notes) == 0 {
		return fmt.Errorf("%s has none of the driver's functions", path)
	}
	// A process may call while the probes are set. The return probes come first, so that no call is seen to begin
	// without its end. Those that free come before those that allocate, which the functions list first, so that
	// no allocation is seen without its free.
	slices.Reverse(enter)
	slices.Reverse(notes)
	for _, it := range []struct {
		program  string
		places   []place
		atReturn bool
	}{{"leave", leave, true}, {"leave", returns, false}, {"enter", enter, false}, {"note", notes, false}} {
		if err := s.attach(file, it.program, it.places, it.atReturn); err != nil {
			return fmt.Errorf("probe %s: %w", path, explain(err))
		}
	}
	return nil
}

// cheapest returns the offset at which a probe of a function costs least: its start, or a little
// behind.
func cheapest(code io.ReaderAt, offset uint64) uint64 {
	var first [16]byte
	n, _ := code.ReadAt(first[:], int64(offset))
	return offset + uint64(emulated(first[:n]))
}

// probeLoader probes the functions that map and unmap code. It does not use the loader's hook for
// debuggers: a debugger's breakpoint there would never be hit.
func (s *Source) probeLoader(path string) error {
	at, err := symbols.Offsets(path, []string{"dlopen", "dlmopen", "dlclose"})
	if err != nil {
		return err
	}
	if at["dlopen"] == 0 || at["dlclose"] == 0 {
		return fmt.Errorf("%s has no dlopen", path)
	}
	file, err := link.OpenExecutable(path)
	if err != nil {
		return err
	}
	mapping := []place{{offset: at["dlopen"]}}
	if other := at["dlmopen"]; other != 0 {
		mapping = append(mapping, place{offset: other})
	}
	if err := s.attach(file, "mapping", mapping, false); err != nil {
		return err
	}
	return s.attach(file, "unmapping", []place{{offset: at["dlclose"]}}, false)
}

// attach attaches a program to the start or the return of functions, or to static probes: the kernel
// increments their semaphores in every process while it is attached.
func (s *Source) attach(file *link.Executable, program string, places []place, atReturn bool) error {
	if s.way != many {
		return s.attachEach(file, program, places, atReturn)
	}
	if len(places) == 0 {
		return nil
	}
	var to link.UprobeMultiOptions
	for _, its := range places {
		to.Addresses, to.Cookies = append(to.Addresses, its.offset), append(to.Cookies, s.cookie(its))
		to.RefCtrOffsets = append(to.RefCtrOffsets, its.semaphore)
	}
	set := file.UprobeMulti
	if atReturn {
		set = file.UretprobeMulti
	}
	l, err := set(nil, s.collection.Programs[program], &to)
	if err == nil {
		s.attached = append(s.attached, l)
	}
	return err
}

// cookie returns what the programs learn of a probe: what it is attached to and, above that, the number of
// the file that is being probed.
func (s *Source) cookie(its place) uint64 { return uint64(s.files)<<32 | uint64(its.attachedTo) }

// attachEach attaches a program to one place after the other.
func (s *Source) attachEach(file *link.Executable, program string, places []place, atReturn bool) error {
	set := file.Uprobe
	if atReturn {
		set = file.Uretprobe
	}
	for _, its := range places {
		prog, err := s.program(program, its.attachedTo)
		if err != nil {
			return err
		}
		to := link.UprobeOptions{Address: its.offset, RefCtrOffset: its.semaphore}
		if s.way == cookies {
			to.Cookie = s.cookie(its)
		}
		l, err := set("", prog, &to)
		if err != nil {
			return err
		}
		s.attached = append(s.attached, l)
	}
	return nil
}

// Kinds of arguments: see struct argument in common.h.
const (
	constant = iota
	inRegister
	inMemory
)

// placesOfNotes tells the programs where the arguments of static probes are.
func (s *Source) placesOfNotes(index int, notes []symbols.Note) (all []place, err error) {
	for _, n := range notes {
		its := programsStaticProbe{Function: uint32(index)}
		for i, a := range n.Arguments[:min(len(n.Arguments), len(its.Arguments))] {
			to := &its.Arguments[i]
			to.Kind, to.Offset, to.Bits, to.Size, to.IsSigned = constant, a.Offset, uint8(8*a.Bytes), uint16(a.Bytes), uint8(bit(a.Signed))
			if a.Register == "" {
				continue
			}
			reg, ok := noteRegs[a.Register]
			if !ok {
				return nil, fmt.Errorf("an argument of a static probe is in the register %s, which is not known", a.Register)
			}
			if to.In, to.Kind = uint16(reg), inRegister; a.Memory {
				to.Kind = inMemory
			}
		}
		at, ok := s.notes[its]
		if !ok {
			at = uint32(len(s.notes))
			if err := s.maps.StaticProbes.Put(at, its); err != nil {
				return nil, fmt.Errorf("%d static probes are watched already: %w", at, err)
			}
			s.notes[its] = at
		}
		all = append(all, place{offset: n.Offset, attachedTo: at, semaphore: n.Semaphore})
	}
	return all, nil
}
