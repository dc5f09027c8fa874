//go:build amd64 || arm64

package attach

import (
	"fmt"
	"io"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
)

// Uprobes are attached to functions, found by their symbols, and to static probes (USDT), found by the
// notes of a file.

// ProbeLibrary probes the functions of a file, for all processes that have loaded it or will. The
// functions are the driver's, or those of a library that Config.Functions names.
func (p *probes) ProbeLibrary(path, library string) error {
	if library == event.Loader {
		return p.probeLoader(path)
	}
	var names []string
	for _, f := range p.functions {
		if library != "" && f.Library == library {
			names = append(names, f.Symbols...)
		}
	}
	at, err := symbols.Offsets(path, names)
	if err != nil {
		return err
	}
	file, err := link.OpenExecutable(path)
	if err != nil {
		return err
	}
	notes, err := symbols.Notes(path)
	if err != nil {
		return err
	}
	code, err := os.Open(path)
	if err != nil {
		return err
	}
	defer code.Close()
	found := 0
	seen := make(map[uint64]bool) // offsets: a function may have several names
	for i, f := range p.functions {
		if f.Library != library || f.Without != "" && notes[f.Without] != nil {
			continue
		}
		if f.Note != "" {
			if err := p.probeNotes(file, i, notes[f.Note]); err != nil {
				return fmt.Errorf("static probe %s of %s: %w", f.Note, path, explain(err))
			}
			found += len(notes[f.Note])
			continue
		}
		var offsets []uint64
		for _, name := range f.Symbols {
			if offset := at[name]; offset != 0 && !seen[offset] {
				seen[offset] = true
				offsets = append(offsets, cheapest(code, offset))
			}
		}
		switch {
		case len(offsets) == 0 && library != "":
			return fmt.Errorf("%s has no function %s: it needs a symbol of that name, that is not inlined", path, f.Symbols[0])
		case len(offsets) == 0:
			continue
		}
		found += len(offsets)
		// The return probe comes first, so that no call is seen to begin without its end.
		for _, prog := range []struct {
			*ebpf.Program
			atReturn bool
		}{{p.returnProbes[i], true}, {p.entryProbes[i], false}} {
			if prog.Program == nil {
				continue
			}
			if err := p.probe(file, offsets, prog.Program, prog.atReturn); err != nil {
				return fmt.Errorf("probe %v of %s: %w", f.Symbols, path, explain(err))
			}
		}
	}
	if found == 0 {
		return fmt.Errorf("%s has none of the driver's functions", path)
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
func (p *probes) probeLoader(path string) error {
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
	for _, it := range []struct {
		prog **ebpf.Program
		ins  asm.Instructions
		at   []string
	}{{&p.dlopenProbe, p.maps.dlopen(), []string{"dlopen", "dlmopen"}}, {&p.dlcloseProbe, p.maps.dlclose(), []string{"dlclose"}}} {
		if *it.prog == nil {
			if *it.prog, err = load(ebpf.Kprobe, p.attach, it.ins); err != nil {
				return err
			}
			p.otherPrograms = append(p.otherPrograms, *it.prog)
		}
		var offsets []uint64
		for _, name := range it.at {
			if offset := at[name]; offset != 0 {
				offsets = append(offsets, offset)
			}
		}
		if err := p.probe(file, offsets, *it.prog, false); err != nil {
			return err
		}
	}
	return nil
}

// probe attaches a program to the start or the return of functions.
func (p *probes) probe(file *link.Executable, offsets []uint64, prog *ebpf.Program, atReturn bool) error {
	if p.multi {
		set := file.UprobeMulti
		if atReturn {
			set = file.UretprobeMulti
		}
		l, err := set(nil, prog, &link.UprobeMultiOptions{Addresses: offsets})
		if err == nil {
			p.attached = append(p.attached, l)
		}
		return err
	}
	set := file.Uprobe
	if atReturn {
		set = file.Uretprobe
	}
	for _, offset := range offsets {
		l, err := set("", prog, &link.UprobeOptions{Address: offset})
		if err != nil {
			return err
		}
		p.attached = append(p.attached, l)
	}
	return nil
}

// probeNotes attaches programs to the places of a static probe. The kernel increments its semaphore in
// every process while they are attached.
func (p *probes) probeNotes(file *link.Executable, index int, notes []symbols.Note) error {
	for _, n := range notes {
		ins, err := p.maps.staticProbe(index, p.functions[index], n.Arguments)
		if err != nil {
			return err
		}
		prog, err := load(ebpf.Kprobe, p.attach, ins)
		if err != nil {
			return err
		}
		p.otherPrograms = append(p.otherPrograms, prog)
		var l link.Link
		if p.multi {
			l, err = file.UprobeMulti(nil, prog, &link.UprobeMultiOptions{Addresses: []uint64{n.Offset}, RefCtrOffsets: []uint64{n.Semaphore}})
		} else {
			l, err = file.Uprobe("", prog, &link.UprobeOptions{Address: n.Offset, RefCtrOffset: n.Semaphore})
		}
		if err != nil {
			return err
		}
		p.attached = append(p.attached, l)
	}
	return nil
}
