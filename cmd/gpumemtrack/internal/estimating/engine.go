package estimating

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/internal/enginelog"
	"github.com/gpumemtrack/gpumemtrack/internal/inputs"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// engineRun is what an engine logged beside an estimate.
type engineRun struct {
	engine enginelog.Engine
	of     string // the engine, its version and the model
	rows   []estimate.Compared
	notes  []string
}

// besideEngine compares what an engine logged with an estimate for a context; nil if the file is no log of an engine.
func besideEngine(a *cli.App, path string, report *estimate.Report, context int) (*engineRun, error) {
	in, err := cli.OpenInput(a.Reading(inputs.Measured), path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if !in.IsLog() {
		return nil, nil
	}
	in.Stream()
	reports, err := enginelog.Read(in.Reader)
	if errors.Is(err, enginelog.ErrNoEngine) {
		return nil, nil // who reads it as a dump says what it is
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r := reports[len(reports)-1] // the latest start
	e := &engineRun{engine: r.Engine, of: string(r.Engine)}
	if r.Version != "" {
		e.of += " " + r.Version
	}
	if r.Model != "" {
		e.of += ", " + r.Model
	}
	e.compare(report, context, r)
	if len(e.rows) == 0 {
		return nil, fmt.Errorf("%s: %s says in it nothing that the estimate has", path, r.Engine)
	}
	if len(reports) > 1 {
		e.notes = append(e.notes, fmt.Sprintf("the log has %d starts: this is the last", len(reports)))
	}
	return e, nil
}

// compare puts what both sides have beside each other. An engine sizes its KV cache by what is free, so it is compared by
// what a token takes, unless it was made for as many tokens as the estimate.
func (e *engineRun) compare(report *estimate.Report, context int, r *enginelog.Report) {
	at := report.Memory()
	if n, ok := engineHolds(r, enginelog.Weights); ok {
		e.row("weights", at.Weights+at.Buffers, n)
	}
	tokens := int64(0) // that the estimate keeps
	if len(report.Inputs) > 0 && len(report.Inputs[0]) > 0 {
		tokens = int64(report.Inputs[0][0]) * int64(context)
	}
	if cache, ok := engineHolds(r, enginelog.Cache); ok && cache > 0 && tokens > 0 && at.Cache > 0 {
		states, _ := engineHolds(r, enginelog.States)
		e.cache(r, at.Cache, cache+states, tokens)
	}
	if n, ok := engineHolds(r, enginelog.Compute); ok {
		e.row("compute buffer", at.Saved+at.Transient, n)
	}
	if n, ok := engineHolds(r, enginelog.Activations); ok {
		e.row("activations", at.Saved+at.Transient, n)
		e.notes = append(e.notes, "the engine measured its activations in a step of as many tokens as one may have: compare with --prefill-chunk of that number")
	}
}

// cache compares the KV cache with that of an estimate for so many tokens.
func (e *engineRun) cache(r *enginelog.Report, estimated, logged alloc.Bytes, tokens int64) {
	kept := r.Capacity.Tokens
	if kept == nil && (r.Engine == enginelog.LlamaCpp || r.Engine == enginelog.Ollama) {
		kept = r.Capacity.Context // all slots share it
	}
	switch {
	case kept == nil:
		e.notes = append(e.notes, fmt.Sprintf("the KV cache of %v is not compared: the log does not say for how many tokens it is", logged))
	case *kept == tokens:
		e.row("KV cache", estimated, logged)
	case *kept > 0:
		e.row("KV cache, a token", estimated/alloc.Bytes(tokens), logged/alloc.Bytes(*kept))
		e.notes = append(e.notes, fmt.Sprintf("the KV cache holds %s tokens, and the estimate is for %s: what a token takes is compared", text.Grouped(*kept), text.Grouped(tokens)))
	}
}

func (e *engineRun) row(of string, estimated, logged alloc.Bytes) {
	e.rows = append(e.rows, estimate.Compared{Of: of, Estimate: estimate.Value{Bytes: estimated}, Measured: logged})
}

// engineHolds returns what an engine has of a part on devices: the most of one rank, or in llama.cpp, which divides the
// layers, the sum.
func engineHolds(r *enginelog.Report, of enginelog.Part) (n alloc.Bytes, ok bool) {
	for _, d := range r.Devices {
		bytes, has := d.Get(of)
		switch {
		case !has || d.OnHost() && ok:
			continue
		case r.Engine == enginelog.LlamaCpp || r.Engine == enginelog.Ollama:
			n += bytes
		default:
			n = max(n, bytes)
		}
		ok = true
	}
	return n, ok
}
