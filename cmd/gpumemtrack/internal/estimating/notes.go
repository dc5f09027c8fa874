package estimating

import (
	"fmt"
	"strconv"
	"strings"
)

// inFlags replaces the options that notes of package estimate name by the flags that set them.
var inFlags = strings.NewReplacer(
	"Machine.GPU and Machine.Loading say", "--gpu and --cuda-loading say", "Machine.GPU", "--gpu", "Machine.Loading", "--cuda-loading",
	"Loop.ZeroGrad", "--zero-grad", "Loop.Form", "--optimizer-form", "Loop.Decay", "--weight-decay", "Loop.Output", "--hold-output",
	"Installed", "--bitsandbytes", "Report.Beside", "--measured",
)

// note turns the notes of a report into a command's: they name flags, and say what was assumed and
// which flags have no effect.
func (e *estimated) note(name string) {
	notes := e.Report.Notes
	for i, note := range notes {
		notes[i] = inFlags.Replace(note)
	}
	notes = append(append(notes, e.notes...), e.options.training.notes...)
	e.Report.Notes = append(notes, e.promptNote(name)...)
	e.Assumed = e.assumed()
}

// promptNote says how prompts are processed, and what a server would need that processes them in
// pieces.
func (e *estimated) promptNote(name string) []string {
	o, r := e.options, e.Report
	if !o.serve || o.llamaCpp || len(r.Inputs) == 0 {
		return nil
	}
	n := r.Inputs[len(r.Inputs)-1][1]
	switch {
	case o.chunk > 0:
		return []string{fmt.Sprintf("prompts are processed %d tokens at a time", n)}
	case n <= piece:
		return nil
	}
	note := fmt.Sprintf("prompts are processed whole, %d tokens at once, as transformers' generate does", n)
	if o.searches() > 0 {
		return []string{note + ": --prompt-chunk says how servers cut them"}
	}
	cut := o
	cut.chunk = piece
	if less, err := cut.estimate(name); err == nil && less.Needs() < r.Needs() {
		note += fmt.Sprintf("; servers cut them: with --prompt-chunk %d it needs %v at most", piece, less.Needs())
	}
	return []string{note}
}

// assumed returns the flags that say what was assumed.
func (e *estimated) assumed() []string {
	o, r := e.options, e.Report
	if len(r.Inputs) == 0 {
		return nil
	}
	var flags []string
	assume := func(given bool, flag, value string) {
		if !given && value != "" {
			flags = append(flags, flag, value)
		}
	}
	text, image := "", ""
	switch shape := r.Inputs[len(r.Inputs)-1]; {
	case o.serve:
		text = strconv.Itoa(e.Context)
	case len(shape) == 2:
		text = strconv.Itoa(shape[1])
	case len(shape) == 4 && shape[1] == 3 && shape[2] == shape[3]:
		image = strconv.Itoa(shape[2])
	}
	assume(o.batch > 0 || o.maxBatch, "--batch", "1")
	assume(o.seq > 0 || o.maxContext, "--seq", text)
	assume(o.image > 0, "--image", image)
	if o.train {
		assume(o.flagSet.Changed("optimizer"), "--optimizer", o.optimizer)
	}
	assume(o.dtype != "" || o.autocast != "" || o.llamaCpp || o.quantize, "--dtype", e.published)
	return flags
}
