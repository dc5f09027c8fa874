//go:build amd64 || arm64

package probes

import (
	"fmt"
	"runtime"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
)

// interpreterOf returns what the programs know of a process's interpreter. program identifies what the
// process runs.
func interpreterOf(l python.Layout, program uint64) (its programsInterpreter, err error) {
	id := threadID(l)
	if id == 0 {
		return its, fmt.Errorf("%v does not tell its threads", l)
	}
	const word, headSize, mostOfThread, mostOfFrame = 8, 88, 1 << 10, 128 // as in common.h and python.h
	names := l.Names()
	head := names.Lines + word - headSize
	for _, at := range []uint64{l.FirstLine, names.File, names.Name} {
		if at-head > headSize-word || names.Lines < headSize || names.Lines+word > uint64(python.MostOf[python.Object]) {
			return its, fmt.Errorf("%v has its names in another order", l)
		}
	}
	end := func(most uint64, offsets ...uint64) (size uint64) {
		for _, at := range offsets {
			if at != python.NoOffset {
				size = max(size, min(at, most)+word)
			}
		}
		return size
	}
	its = programsInterpreter{
		First: l.Interpreters, Next: l.Next, Threads: l.Threads, NextThread: l.NextThread, Status: l.Status, ThreadId: id, Program: program,
		ThreadSize: end(mostOfThread, l.NextThread, l.Status, id), Stacked: bit(l.Version >= 0x030b),
	}
	owner := l.Owner
	if owner != python.NoOffset {
		owner &^= word - 1 // of the word with it
	}
	p := &its.Layout
	p.Version, p.Current, p.Indirect = uint64(l.Version), l.Frame, l.Indirect
	p.Previous, p.Code, p.Instruction, p.IsIndex, p.Owner = l.Previous, l.Code, l.Instruction, bit(l.IsIndex), l.Owner
	p.FrameSize = end(mostOfFrame, l.Previous, l.Code, l.Instruction, owner)
	p.Head, p.FirstLine, p.File, p.Name, p.ObjectSize = head, l.FirstLine-head, names.File-head, names.Name-head, names.Lines+word
	p.Length, p.Ascii, p.Wide, p.ByteCount, p.Bytes = names.Length, names.ASCII, names.Wide, names.Size, names.Bytes
	p.ComparesText = bit(l.Version < 0x030c)
	if its.ThreadSize > mostOfThread || p.FrameSize > mostOfFrame {
		return its, fmt.Errorf("%v has threads or frames of another size", l)
	}
	return its, nil
}

// threadID returns the offset of the identity in a thread of Python; 0 if it has none. On amd64 it is the
// address that pthread_self returns, the register fs. On other architectures that depends on the C library,
// and threads are identified by their IDs.
func threadID(l python.Layout) uint64 {
	if runtime.GOARCH != "amd64" {
		return l.KernelID
	}
	return l.ThreadID
}

func bit(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}
