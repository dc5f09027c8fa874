// Package xladump reads the texts that XLA writes for a compiled program with --xla_dump_to: buffer-assignment.txt,
// memory-usage-report.txt, live-range.txt and the optimized module. Together they say what is live at the program's peak,
// by instruction and line of source. Each alone says a part of it; what no text says stays unknown.
package xladump

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// ErrNoDump is returned for a text that is none of XLA's dumps.
var ErrNoDump = errors.New("it is no memory report, buffer assignment, live range or module of XLA")

// Suffixes are those of the files of one program, behind its name: "module_0008.jit_step.gpu_after_optimizations".
var Suffixes = []string{"-buffer-assignment.txt", "-live-range.txt", "-memory-usage-report.txt", ".txt"}

// Report is what the texts of one program say.
type Report struct {
	Module      string       `json:"module,omitempty"`
	Total       *alloc.Bytes `json:"total_bytes"` // that the program has allocated while it runs; nil is not known
	Peak        *alloc.Bytes `json:"peak_bytes"`  // live at the peak, shared memory once; nil is not known
	Allocations []Allocation `json:"allocations"` // the largest first
	Live        []Buffer     `json:"live"`        // at the peak, the largest first
}

// Allocation is a piece of memory, which values of the program have after each other, or beside each other.
type Allocation struct {
	Index  int64       `json:"index"`
	Bytes  alloc.Bytes `json:"bytes"`
	What   string      `json:"what"`   // as XLA prints it: "parameter 0, shape |f32[2,3]|", "preallocated-temp"
	Values int         `json:"values"` // that are in it
}

// Buffer is a value that is live at the peak.
type Buffer struct {
	Instruction string      `json:"instruction"`
	Bytes       alloc.Bytes `json:"bytes"`
	Shape       string      `json:"shape,omitempty"`
	What        string      `json:"what,omitempty"`      // of its allocation
	Operation   string      `json:"operation,omitempty"` // such as jit(step)/dot_general
	File        string      `json:"file,omitempty"`
	Line        int         `json:"line,omitempty"`
	// Shares names the value in whose memory it is: an operation that writes over its operand. It counts once.
	Shares string `json:"shares,omitempty"`
}

// Read reads the texts of one program, each of which may be packed by gzip. The error is ErrNoDump if none of them is one,
// or says that a text is torn or too large.
func Read(texts ...io.Reader) (*Report, error) {
	p := parser{values: make(map[string]value), instructions: make(map[string]instruction), files: make(map[int64]string), locations: make(map[int64]location), frames: make(map[int64]int64)}
	for _, text := range texts {
		in, err := bounded.NewReader(text, 0)
		if err != nil {
			return nil, err
		}
		if err := p.read(in); err != nil {
			return nil, fmt.Errorf("read dump of XLA: %w", err)
		}
	}
	return p.report()
}

// report puts together what the texts say.
func (p *parser) report() (*Report, error) {
	if p.total == nil {
		p.total = p.spaces
	}
	exact := len(p.allocations) > 0
	if !exact {
		p.allocations = p.rounded
	}
	if len(p.allocations) == 0 && len(p.live) == 0 && p.total == nil {
		return nil, ErrNoDump
	}
	r := &Report{Module: p.module, Total: p.total, Allocations: append([]Allocation{}, p.allocations...), Live: []Buffer{}}
	slices.SortStableFunc(r.Allocations, func(a, b Allocation) int { return cmp.Compare(b.Bytes, a.Bytes) })
	if p.total == nil && exact {
		var sum alloc.Bytes
		for _, a := range p.allocations {
			sum += a.Bytes
		}
		r.Total = &sum
	}
	if len(p.live) == 0 {
		return r, nil
	}
	p.peak(r)
	slices.SortStableFunc(r.Live, func(a, b Buffer) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return r, nil
}

// peak says what is live at the peak. Where the texts do not tell which values lie in the memory of others, so that they
// add up to more than there is, the sum is not known.
func (p *parser) peak(r *Report) {
	type place struct {
		allocation int
		offset     int64
	}
	at := make(map[place]string)
	var sum alloc.Bytes
	known := true
	for _, l := range p.live {
		b := Buffer{Instruction: l.name, Bytes: l.bytes}
		v, ok := p.values[l.name]
		if ok {
			b.Shape, b.What = v.shape, p.allocations[v.allocation].What
			where := place{v.allocation, v.offset}
			b.Shares = at[where]
			at[where] = cmp.Or(at[where], l.name)
		}
		known = known && ok
		b.Operation, b.File, b.Line = p.source(instructionOf(l.name))
		if b.Shares == "" {
			sum += l.bytes
		}
		r.Live = append(r.Live, b)
	}
	if known || r.Total == nil || sum <= *r.Total {
		r.Peak = &sum
	}
}
