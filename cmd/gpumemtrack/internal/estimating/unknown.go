package estimating

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// cacheAlone is all that is known from the config.json of an unknown family: the size of the keys and
// values, from its numbers of layers and heads. It is also an error, which says what is missing.
type cacheAlone struct {
	Schema string      `json:"schema"`
	Mode   string      `json:"mode"`
	Name   string      `json:"name"`
	Cache  alloc.Bytes `json:"cache_bytes"`
	// Unknown names the parts whose size is not known.
	Unknown []string    `json:"unknown"`
	Budget  alloc.Bytes `json:"budget_bytes,omitempty"`
	Fits    *bool       `json:"fits"` // nil if it is unknown, or not asked
	config  estimate.KVConfig
	err     error
}

// newCacheAlone returns a *cacheAlone, or the error of computing the size.
func newCacheAlone(c *checkpoint.File, cache estimate.KVConfig, unknown error) error {
	n, err := estimate.KVCache(cache)
	if err != nil {
		return err
	}
	return &cacheAlone{Schema: estimateSchema, Mode: "serve", Name: c.Name, Cache: n, Unknown: []string{"weights", "activations"}, config: cache, err: unknown}
}

func (c *cacheAlone) Error() string {
	return fmt.Sprintf("%s: its weights and what it needs to run are unknown: put the weights beside the config.json: %s", c.Name, plainly(c.err))
}

// Unwrap returns the reason why there are no layers.
func (c *cacheAlone) Unwrap() error { return c.err }

// writeCacheAlone prints the size of the keys and values. With --fits it always fails: without the
// weights it is not known whether the model fits.
func writeCacheAlone(a *cli.App, c *cacheAlone, o estimateOptions) error {
	if o.fits > 0 {
		if c.Budget = o.fits; c.Cache > o.fits {
			c.Fits = new(bool)
		}
	}
	if o.json {
		if err := json.NewEncoder(a.Stdout).Encode(c); err != nil {
			return err
		}
	} else {
		assumed := ""
		if o.seq == 0 {
			assumed = " (assumed)"
		}
		fmt.Fprintf(a.Stdout, "%s: keys and values of %s x %s tokens%s take %v, by the config's own numbers of layers, heads and their size.\n", c.Name, text.Grouped(c.config.Batch), text.Grouped(c.config.ContextLength), assumed, c.Cache)
		fmt.Fprintf(a.Stdout, "Note: %v\n", c)
	}
	switch {
	case o.fits == 0:
		return nil
	case c.Cache > o.fits:
		return cli.Exit(cli.ExitUnfit, fmt.Errorf("%s does not fit: its keys and values alone may take %v, and %v is available", c.Name, c.Cache, o.fits))
	case o.weightsOnly:
		return cli.Exit(cli.ExitUnknown, fmt.Errorf("%s: --weights-only has no weights to judge: put them beside the config.json", c.Name))
	}
	return cli.Exit(cli.ExitUnknown, fmt.Errorf("%s: whether it fits is not known without its weights: put them beside the config.json", c.Name))
}

// weightsAlone is the answer for files whose tensors are known and whose architecture is not: the exact
// weights, and null for what depends on the layers.
type weightsAlone struct {
	Schema     string              `json:"schema"`
	Mode       string              `json:"mode"`
	Name       string              `json:"name"`
	Format     string              `json:"format"`
	Parameters int64               `json:"parameters"`
	Weights    alloc.Bytes         `json:"weights_bytes"`
	Buffers    alloc.Bytes         `json:"buffers_bytes"`
	Stored     []checkpoint.Stored `json:"stored"`

	// What a training holds beside the weights; null otherwise.
	Master    *alloc.Bytes `json:"master_bytes"`
	Gradients *alloc.Bytes `json:"gradients_bytes"`
	Optimizer *alloc.Bytes `json:"optimizer_bytes"`

	Activations *alloc.Bytes `json:"activations_bytes"`  // always null
	Cache       *alloc.Bytes `json:"cache_bytes"`        // null if unknown
	Needs       *alloc.Bytes `json:"needed_upper_bytes"` // always null

	Unknown []string    `json:"unknown"` // the parts whose size is unknown
	Reason  string      `json:"reason"`  // why they are
	Budget  alloc.Bytes `json:"budget_bytes,omitempty"`
	Fits    *bool       `json:"fits"` // null if it is unknown, or not asked
	Notes   []string    `json:"notes,omitempty"`
}

// weightsKnownAlone reports whether the files hold weights and no architecture that is known.
func weightsKnownAlone(c *checkpoint.File) bool {
	_, err := c.Architecture()
	return len(c.Stored()) > 0 && (errors.Is(err, checkpoint.ErrUnknownArchitecture) || errors.Is(err, checkpoint.ErrNoArchitecture))
}

func newWeightsAlone(c *checkpoint.File, r *estimate.Report, o estimateOptions) *weightsAlone {
	m := r.Memory()
	_, err := c.Architecture()
	w := &weightsAlone{
		Schema: estimateSchema, Mode: o.mode(), Name: c.Name, Format: c.Format, Stored: c.Stored(),
		Parameters: r.Params.Count, Weights: m.Weights, Buffers: m.Buffers,
		Unknown: []string{"activations"}, Reason: errors.Unwrap(err).Error(), Notes: c.Notes(),
	}
	if o.train {
		w.Master, w.Gradients, w.Optimizer = &m.Master, &m.Gradients, &m.Optimizer
	}
	const byConfig = "by the config's own numbers of layers and heads, and their size"
	if _, err := c.Cache(1, 0); m.Cache > 0 {
		w.Cache = &m.Cache
		w.Notes = append(w.Notes, "keys and values are counted "+byConfig)
	} else if err != nil {
		w.Unknown = append(w.Unknown, "cache")
	} else {
		w.Notes = append(w.Notes, "--serve counts keys and values, "+byConfig)
	}
	if o.fits > 0 {
		w.Budget = o.fits
		if fits := r.Fits(o.fits); !fits || o.weightsOnly {
			w.Fits = &fits
		}
	}
	return w
}

// writeWeightsAlone prints the answer. With --fits it fails, unless the weights alone are asked for and
// fit.
func writeWeightsAlone(a *cli.App, w *weightsAlone, o estimateOptions) error {
	if o.json {
		if err := json.NewEncoder(a.Stdout).Encode(w); err != nil {
			return err
		}
	} else {
		w.write(a.Stdout)
		if w.Fits != nil && *w.Fits {
			fmt.Fprintf(a.Stdout, "The weights fit in %s.\n", o.budget())
		}
	}
	switch {
	case o.fits == 0:
		return nil
	case w.Fits == nil:
		return cli.Exit(cli.ExitUnknown, fmt.Errorf("%s: whether it fits in %s is unknown: only its weights are known, %v, not what it needs to run: --weights-only compares the weights alone", w.Name, o.budget(), w.Weights+w.Buffers))
	case !*w.Fits:
		return cli.Exit(cli.ExitUnfit, fmt.Errorf("%s does not fit in %s: its weights alone take %v", w.Name, o.budget(), w.Weights+w.Buffers))
	}
	return nil
}

func (w *weightsAlone) write(out io.Writer) {
	tensors := 0
	t := cli.NewTable(out, 1, "Stored as", "Tensors", "Elements", "Size")
	for _, s := range w.Stored {
		tensors += s.Tensors
		t.AppendRow(table.Row{s.Type, text.Grouped(s.Tensors), text.Grouped(s.Elements), s.Bytes})
	}
	fmt.Fprintf(out, "%s: %s parameters, %v, in %s tensors\n", w.Name, text.Grouped(w.Parameters), w.Weights, text.Grouped(tensors))
	t.Render()
	for _, p := range []struct {
		name string
		size *alloc.Bytes
	}{{"buffers", &w.Buffers}, {"master weights", w.Master}, {"gradients", w.Gradients}, {"optimizer", w.Optimizer}, {"keys and values", w.Cache}} {
		if p.size != nil && *p.size > 0 {
			fmt.Fprintf(out, "%s: %v\n", p.name, *p.size)
		}
	}
	fmt.Fprintf(out, "%s: unknown: %s\n", strings.Join(w.Unknown, ": unknown, "), w.Reason)
	for _, note := range w.Notes {
		fmt.Fprintf(out, "Note: %s\n", note)
	}
}
