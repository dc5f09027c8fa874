//go:build amd64 || arm64

package attach

import (
	"fmt"

	"github.com/cilium/ebpf/asm"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
)

// A code object may be freed as soon as its thread continues, and another may get its address. So what
// names a function is copied while the thread is stopped, into the ring buffer before the event. It is
// copied once: a map has the known code objects with what distinguishes each from another at the same
// address. The map is updated after the copy, so that no event of another thread comes before it. A frame
// whose code object is unknown, and could not be copied, is marked.

// Byte offsets in bpf.knownCode: what distinguishes code objects.
const (
	knownDigest = 8 * iota // of the head, which has a unique version number since 3.12
	knownFile              // before 3.12: address of the text of the file's name
	knownFileSize
	knownName
	knownNameSize
	knownTexts // digest of both texts
	knownSize
)

// Stack slots of the program that copies.
const (
	slotFile    = slotEnd - 8 // addresses of objects
	slotName    = slotEnd - 16
	slotLines   = slotEnd - 24
	slotSize    = slotEnd - 32 // of the line table
	slotMost    = slotEnd - 40 // maximum size of the line table
	slotFrames  = slotEnd - 48 // address of the thread's scratch buffer
	slotMissing = slotEnd - 56 // a part could not be copied
)

const (
	regScratch       = regCall // address of the thread's scratch buffer
	maxNew           = 24      // code objects of an event: the kernel allows a chain of 33 tail calls
	fewLines         = 512     // bytes of a line table: most have fewer
	digestMultiplier = 0x9e3779b97f4a7c15 >> 1
)

// readHead reads the head of a code object, or jumps to a label.
func readHead(unreadable string) asm.Instructions {
	return append(layoutWord(asm.R3, pyHead),
		asm.LoadMem(asm.R1, asm.RFP, slotCode, asm.DWord),
		asm.Add.Reg(asm.R3, asm.R1),
		asm.Mov.Reg(asm.R1, regEvent),
		asm.Add.Imm(asm.R1, inHead),
		asm.Mov.Imm(asm.R2, headSize),
		asm.FnProbeReadUser.Call(),
		asm.JNE.Imm(asm.R0, 0, unreadable),
	)
}

// inHeadAt loads a value of the head, at the offset in a word of the layout.
func inHeadAt(to asm.Register, word int, size asm.Size) asm.Instructions {
	return append(layoutWord(asm.R2, word),
		asm.And.Imm(asm.R2, 0x7f),
		asm.Add.Reg(asm.R2, regEvent),
		asm.LoadMem(to, asm.R2, inHead, size),
	)
}

// mixDigest adds words of the scratch buffer to the digest in R1, up to the size in R4.
func mixDigest(from, size int, enough string) (ins asm.Instructions) {
	for at := 0; at < size; at += 8 {
		if enough != "" && at > 0 {
			ins = append(ins, asm.JLE.Imm(asm.R4, int32(at), enough))
		}
		ins = append(ins, asm.LoadMem(asm.R2, regEvent, int16(from+at), asm.DWord), asm.Xor.Reg(asm.R1, asm.R2), asm.Mul.Reg(asm.R1, asm.R3))
	}
	last := asm.Mov.Reg(asm.R2, asm.R1)
	if enough != "" {
		last = last.WithSymbol(enough)
	}
	return append(ins, last, asm.RSh.Imm(asm.R2, 29), asm.Xor.Reg(asm.R1, asm.R2))
}

// codeDigest writes the key of a code object to slotKnownKey, and the digest of its head to slotKnown.
func codeDigest() asm.Instructions {
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R1, regThread),
		asm.RSh.Imm(asm.R1, 32),
		asm.LSh.Imm(asm.R1, 47), // above the addresses of programs
		asm.LoadMem(asm.R2, asm.RFP, slotCode, asm.DWord),
		asm.Add.Reg(asm.R1, asm.R2),
		asm.StoreMem(asm.RFP, slotKnownKey, asm.R1, asm.DWord),
	}
	ins = append(append(ins, layoutWord(asm.R1, pyProgram)...), asm.LoadImm(asm.R3, digestMultiplier, asm.DWord))
	ins = append(ins, mixDigest(inHead, headSize, "")...)
	return append(ins, asm.StoreMem(asm.RFP, slotKnown+knownDigest, asm.R1, asm.DWord))
}

// readTexts puts the digest of the texts of both strings into R1. They distinguish code objects without
// a version number. It jumps to a label if they are too long.
func readTexts(tooLong string) (ins asm.Instructions) {
	texts := []struct{ slot, at, most int }{{slotKnown + knownFile, inTexts, maxFile}, {slotKnown + knownName, inTexts + maxFile, maxName}}
	for _, t := range texts {
		ins = append(ins,
			asm.LoadMem(asm.R2, asm.RFP, int16(t.slot+8), asm.DWord),
			asm.JGT.Imm(asm.R2, int32(t.most), tooLong),
			asm.LoadMem(asm.R3, asm.RFP, int16(t.slot), asm.DWord),
			asm.Mov.Reg(asm.R1, regEvent),
			asm.Add.Imm(asm.R1, int32(t.at)),
			asm.FnProbeReadUser.Call(),
			asm.JNE.Imm(asm.R0, 0, tooLong),
		)
	}
	ins = append(ins, asm.Mov.Imm(asm.R1, 0), asm.LoadImm(asm.R3, digestMultiplier, asm.DWord))
	for _, t := range texts {
		ins = append(ins, asm.LoadMem(asm.R4, asm.RFP, int16(t.slot+8), asm.DWord))
		ins = append(ins, mixDigest(t.at, t.most, fmt.Sprint("enough ", t.at))...)
	}
	return ins
}

// frameAt puts the address of the frame with the index in slotIndex into a register.
func frameAt(to asm.Register) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.RFP, slotIndex, asm.DWord),
		asm.And.Imm(asm.R1, event.MaxPython-1),
		asm.LSh.Imm(asm.R1, 4),
		asm.Mov.Reg(to, regEvent),
		asm.Add.Reg(to, asm.R1),
	}
}

// copyParts fills the copy.
func copyParts() asm.Instructions {
	ins := asm.Instructions{
		asm.StoreMem(regEvent, event.OffThread, regThread, asm.DWord),
		asm.LoadImm(asm.R1, int64(event.PythonCode)<<32, asm.DWord),
		asm.StoreMem(regEvent, event.OffWhat, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotCode, asm.DWord),
		asm.StoreMem(regEvent, python.CopyCode, asm.R1, asm.DWord),
	}
	for _, at := range []int16{python.CopyVersion, python.CopyCodeAddress} {
		ins = append(ins, store(regEvent, at, 0)...)
	}
	ins = append(ins, store(asm.RFP, slotMissing, 0)...)
	ins = append(append(ins, store(regEvent, addressOf(python.Runtime), 0)...), store(regEvent, addressOf(python.Runtime)+8, 0)...)

	ins = append(ins, layoutWord(asm.R2, pyObject)...)
	ins = append(ins, copyPart(python.Object, slotCode, "object", "no object")...)
	ins = append(ins, missing("no object", "object", python.Object, true)...)
	for _, s := range []struct {
		part python.Part
		slot int16
	}{{python.File, slotFile}, {python.Name, slotName}} {
		ins = append(ins, copyString(s.part, s.slot)...)
	}
	ins = append(ins, asm.LoadMem(asm.R2, asm.RFP, slotSize, asm.DWord))
	ins = append(ins, copyPart(python.Lines, slotLines, "lines", "no lines")...)
	return append(ins, missing("no lines", "lines", python.Lines, false)...)
}

func addressOf(p python.Part) int16 { return int16(python.CopyParts + 16*int(p)) }

// copyPart copies the number of bytes in R2, at most the part's maximum, and jumps to one of two labels.
func copyPart(p python.Part, slot int16, copied, unreadable string) asm.Instructions {
	fits := "fits " + unreadable
	most := asm.Mov.Imm(asm.R1, int32(python.MostOf[p]))
	if p == python.Lines {
		most = asm.LoadMem(asm.R1, asm.RFP, slotMost, asm.DWord)
	}
	return asm.Instructions{
		most,
		asm.JLE.Reg(asm.R2, asm.R1, fits),
		asm.Mov.Reg(asm.R2, asm.R1),
		asm.StoreMem(regEvent, addressOf(p)+8, asm.R2, asm.DWord).WithSymbol(fits),
		asm.LoadMem(asm.R3, asm.RFP, slot, asm.DWord),
		asm.StoreMem(regEvent, addressOf(p), asm.R3, asm.DWord),
		asm.Mov.Reg(asm.R1, regEvent),
		asm.Add.Imm(asm.R1, int32(p.At())),
		asm.FnProbeReadUser.Call(),
		asm.JEq.Imm(asm.R0, 0, copied),
		asm.Ja.Label(unreadable),
	}
}

// missing sets the size of a part to 0. It starts at one label and ends at the other.
func missing(label, end string, p python.Part, needed bool) asm.Instructions {
	ins := store(regEvent, addressOf(p)+8, 0)
	ins[0] = ins[0].WithSymbol(label)
	if needed {
		ins = append(ins, store(asm.RFP, slotMissing, 1)...)
	}
	return append(ins, asm.Mov.Imm(asm.R0, 0).WithSymbol(end))
}

// copyString copies a string. The width of its characters is in its state, differently in each version,
// so it is first copied at its maximum size. That may fail where memory ends behind a shorter string.
func copyString(p python.Part, slot int16) asm.Instructions {
	label := func(n any) string { return fmt.Sprint("string ", p, " ", n) }
	ins := append(readField(slotWord, 8, slot, pyLength), asm.JNE.Imm(asm.R0, 0, label("unreadable")))
	for try, it := range []struct {
		begin, wide int
	}{{pyWide, 4}, {pyWide, 1}, {pyASCII, 1}} {
		ins = append(ins, asm.LoadMem(asm.R3, asm.RFP, slotWord, asm.DWord).WithSymbol(label(try)))
		ins = append(ins,
			asm.JLE.Imm(asm.R3, int32(python.MostOf[p]), label(fmt.Sprint("short ", try))),
			asm.Mov.Imm(asm.R3, int32(python.MostOf[p])),
			asm.Mul.Imm(asm.R3, int32(it.wide)).WithSymbol(label(fmt.Sprint("short ", try))),
		)
		ins = append(ins, layoutWord(asm.R2, it.begin)...)
		ins = append(ins, asm.Add.Reg(asm.R2, asm.R3))
		next := label(try + 1)
		if try == 2 {
			next = label("unreadable")
		}
		ins = append(ins, copyPart(p, slot, label("copied"), next)...)
	}
	return append(ins, missing(label("unreadable"), label("copied"), p, true)...)
}

// textsOf finds the texts of the copied strings in the layout of versions before 3.12.
func textsOf() asm.Instructions {
	const length, state, ascii, wide = 16, 32, 48, 72
	var ins asm.Instructions
	for at := int16(knownFile); at < knownSize; at += 8 {
		ins = append(ins, store(asm.RFP, slotKnown+at, 0)...)
	}
	ins = append(ins, layoutWord(asm.R2, pyCompareText)...)
	ins = append(ins, asm.JEq.Imm(asm.R2, 0, "no texts"))
	for _, s := range []struct {
		part     python.Part
		from, to int16
	}{{python.File, slotFile, slotKnown + knownFile}, {python.Name, slotName, slotKnown + knownName}} {
		at, label := int16(s.part.At()), fmt.Sprint("text ", s.part)
		ins = append(ins,
			asm.LoadMem(asm.R1, regEvent, at+length, asm.DWord),
			asm.LoadMem(asm.R2, regEvent, at+state, asm.Word),
			asm.LoadMem(asm.R3, asm.RFP, s.from, asm.DWord),
			asm.Add.Imm(asm.R1, 1), // the terminating 0
			asm.Add.Imm(asm.R3, ascii),
			asm.Mov.Reg(asm.R4, asm.R2),
			asm.And.Imm(asm.R4, 1<<6),
			asm.JNE.Imm(asm.R4, 0, label),
			asm.Add.Imm(asm.R3, wide-ascii),
			asm.RSh.Imm(asm.R2, 2),
			asm.And.Imm(asm.R2, 7),
			asm.Mul.Reg(asm.R1, asm.R2),
			asm.Add.Imm(asm.R1, 7).WithSymbol(label), // objects begin and end at multiples of 16
			asm.And.Imm(asm.R1, ^int32(7)),
			asm.StoreMem(asm.RFP, s.to, asm.R3, asm.DWord),
			asm.StoreMem(asm.RFP, s.to+8, asm.R1, asm.DWord),
		)
	}
	return append(ins, asm.Mov.Imm(asm.R0, 0).WithSymbol("no texts"))
}
