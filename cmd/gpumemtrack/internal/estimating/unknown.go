package estimating

import (
	"encoding/json"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
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
	Fits    *bool       `json:"fits,omitempty"`
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
	return fmt.Sprintf("%s: its weights and what it needs to run are unknown: put the weights beside the config.json: %v", c.Name, c.err)
}

// Unwrap returns the reason why there are no layers.
func (c *cacheAlone) Unwrap() error { return c.err }

// writeCacheAlone prints the size of the keys and values. With --fits it always fails: without the
// weights it is not known whether the model fits.
func writeCacheAlone(a *cli.App, c *cacheAlone, o estimateOptions) error {
	if o.fits > 0 {
		c.Budget, c.Fits = o.fits, new(bool)
	}
	if o.json {
		if err := json.NewEncoder(a.Stdout).Encode(c); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.Stdout, "%s: keys and values of %d x %d tokens take %v, by the config's own numbers of layers, heads and their size.\n", c.Name, c.config.Batch, c.config.ContextLength, c.Cache)
		fmt.Fprintf(a.Stdout, "Note: %v\n", c)
	}
	switch {
	case o.fits == 0:
		return nil
	case c.Cache > o.fits:
		return cli.Exit(cli.ExitUnfit, fmt.Errorf("%s does not fit: its keys and values alone may take %v, and %v is available", c.Name, c.Cache, o.fits))
	case o.weightsOnly:
		return cli.Exit(cli.ExitUnfit, fmt.Errorf("%s: --weights-only has no weights to judge: put them beside the config.json", c.Name))
	}
	return cli.Exit(cli.ExitUnfit, fmt.Errorf("%s: whether it fits is not known without its weights: put them beside the config.json", c.Name))
}
