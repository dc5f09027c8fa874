package inspect

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	line "github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
	"github.com/gpumemtrack/gpumemtrack/internal/xladump"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// showXLA prints what XLA wrote for a program. Its texts lie beside each other, and each has a part, so those of the same
// name are read too.
func showXLA(a *cli.App, in *cli.Input, word string, asJSON bool) error {
	texts := []io.Reader{in.Reader}
	name := word
	for _, suffix := range xladump.Suffixes {
		if base, ok := strings.CutSuffix(word, suffix); ok && word != "-" {
			name = base
			beside, closeAll, err := openBeside(base, suffix)
			defer closeAll()
			if err != nil {
				return err
			}
			texts = append(texts, beside...)
			break
		}
	}
	r, err := xladump.Read(texts...)
	if err != nil {
		return in.Error(err)
	}
	if asJSON {
		return cli.WriteObject(a.Stdout, "gpumemtrack.xla/1", r)
	}
	if word == "-" {
		name = in.Name
	}
	writeXLA(a, filepath.Base(name), r)
	return nil
}

// openBeside opens the other texts of a program.
func openBeside(base, suffix string) (texts []io.Reader, closeAll func(), err error) {
	var open []io.Closer
	closeAll = func() {
		for _, f := range open {
			f.Close()
		}
	}
	for _, other := range xladump.Suffixes {
		if other == suffix {
			continue
		}
		f, err := userfile.Open(base + other)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return texts, closeAll, err
		}
		open, texts = append(open, f), append(texts, f)
	}
	return texts, closeAll, nil
}

// mostXLA is how many rows of a table are printed; JSON has all.
const mostXLA = 20

func writeXLA(a *cli.App, name string, r *xladump.Report) {
	fmt.Fprintf(a.Stdout, "%s, compiled by XLA\n", line.Line(name))
	if r.Total != nil {
		fmt.Fprintf(a.Stdout, "allocated while it runs: %v\n", *r.Total)
	}
	switch {
	case len(r.Live) == 0:
		fmt.Fprintln(a.Stdout, "what is live at its peak is in its live-range.txt, which is not here")
	case r.Peak == nil:
		fmt.Fprintf(a.Stdout, "live at its peak: %s, of which some lie in the memory of others: its buffer-assignment.txt tells which\n", count(len(r.Live), "value"))
	default:
		fmt.Fprintf(a.Stdout, "live at its peak: %v in %s\n", *r.Peak, count(len(r.Live), "value"))
	}
	if len(r.Live) > 0 {
		t := cli.NewGrid(1, []string{"Shape"}, "Instruction", "Memory", "Shape", "Line")
		for _, b := range r.Live[:min(len(r.Live), mostXLA)] {
			size := b.Bytes.String()
			if b.Shares != "" {
				size = "(" + size + ")"
			}
			t.AppendRow(table.Row{line.Line(b.Instruction), size, line.Line(withoutLayout(b.Shape)), line.Line(sourceOf(b))})
		}
		fmt.Fprint(a.Stdout, t.Fitted(cli.WidthOf(a.Stdout)))
		writeMore(a.Stdout, len(r.Live))
		if shares(r) {
			fmt.Fprintln(a.Stdout, "In brackets: it lies in the memory of a value above it, and counts once.")
		}
	}
	if len(r.Allocations) == 0 {
		return
	}
	t := cli.NewGrid(1, nil, "Allocation", "Memory", "Values")
	for _, n := range r.Allocations[:min(len(r.Allocations), mostXLA)] {
		t.AppendRow(table.Row{line.Line(n.What), n.Bytes, n.Values})
	}
	fmt.Fprint(a.Stdout, t.Fitted(cli.WidthOf(a.Stdout)))
	writeMore(a.Stdout, len(r.Allocations))
}

func writeMore(w io.Writer, all int) {
	if all > mostXLA {
		fmt.Fprintf(w, "and %d more\n", all-mostXLA)
	}
}

func shares(r *xladump.Report) bool {
	for _, b := range r.Live[:min(len(r.Live), mostXLA)] {
		if b.Shares != "" {
			return true
		}
	}
	return false
}

// withoutLayout returns a shape without the order of its dimensions in memory: "f32[2,3]{1,0}" is f32[2,3].
func withoutLayout(shape string) string {
	if strings.HasPrefix(shape, "(") {
		return shape
	}
	shape, _, _ = strings.Cut(shape, "{")
	return shape
}

// sourceOf names the line of code of a value, or its operation.
func sourceOf(b xladump.Buffer) string {
	if b.File == "" {
		return b.Operation
	}
	return mem.Frame{Function: b.Operation, File: b.File, Line: b.Line}.String()
}
