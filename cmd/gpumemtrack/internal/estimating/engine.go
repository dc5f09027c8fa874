package estimating

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/internal/enginelog"
)

// compareEngine compares what an engine logged with the report; nil if the file is no log of an engine.
func (e *estimated) compareEngine(a *cli.App, path string) (*measured, error) {
	in, err := cli.OpenInput(a, path, 0)
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
	m := &measured{File: path, Device: string(r.Engine), Engine: r.Engine}
	if r.Version != "" {
		m.Device += " " + r.Version
	}
	if r.Model != "" {
		m.Device += ", " + r.Model
	}
	e.engineRows(m, r)
	if len(m.Rows) == 0 {
		return nil, fmt.Errorf("%s: %s says in it nothing that the estimate has", path, r.Engine)
	}
	if len(reports) > 1 {
		m.Notes = append(m.Notes, fmt.Sprintf("the log has %d starts: this is the last", len(reports)))
	}
	return m, nil
}

// engineRows puts what both sides have beside each other. An engine sizes its KV cache by what is free, so it is compared
// by what a token takes, unless it was made for as many tokens as the estimate.
func (e *estimated) engineRows(m *measured, r *enginelog.Report) {
	at := e.Report.Memory()
	if n, ok := engineHolds(r, enginelog.Weights); ok {
		m.row("weights", at.Weights+at.Buffers, n)
	}
	tokens := int64(0) // that the estimate keeps
	if len(e.Report.Inputs) > 0 && len(e.Report.Inputs[0]) > 0 {
		tokens = int64(e.Report.Inputs[0][0]) * int64(e.Context)
	}
	cache, cached := engineHolds(r, enginelog.Cache)
	if states, ok := engineHolds(r, enginelog.States); ok && cached {
		cache += states
	}
	kept := r.Capacity.Tokens
	if kept == nil && (r.Engine == enginelog.LlamaCpp || r.Engine == enginelog.Ollama) {
		kept = r.Capacity.Context // all slots share it
	}
	switch {
	case !cached || cache <= 0 || tokens == 0 || at.Cache == 0:
	case kept == nil:
		m.Notes = append(m.Notes, fmt.Sprintf("the KV cache of %v is not compared: the log does not say for how many tokens it is", cache))
	case *kept == tokens:
		m.row("KV cache", at.Cache, cache)
	case *kept > 0:
		m.row("KV cache, a token", at.Cache/alloc.Bytes(tokens), cache/alloc.Bytes(*kept))
		m.Notes = append(m.Notes, fmt.Sprintf("the KV cache holds %d tokens, and the estimate is for %d: what a token takes is compared", *kept, tokens))
	}
	if n, ok := engineHolds(r, enginelog.Compute); ok {
		m.row("compute buffer", at.Saved+at.Transient, n)
	}
	if n, ok := engineHolds(r, enginelog.Activations); ok {
		m.row("activations", at.Saved+at.Transient, n)
		m.Notes = append(m.Notes, "the engine measured its activations in a step of as many tokens as one may have: compare with --prefill-chunk of that number")
	}
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

func (m *measured) row(of string, estimated, logged alloc.Bytes) {
	m.Rows = append(m.Rows, measuredRow(estimate.Compared{Of: of, Estimate: estimate.Value{Bytes: estimated}, Measured: logged}))
}
