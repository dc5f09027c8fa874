package estimating

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
	"github.com/gpumemtrack/gpumemtrack/internal/engines"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// askedPool reports whether the pool is asked for, and checks its flags.
func askedPool(o estimateOptions, given func(flag string) bool) (bool, error) {
	asked := slices.IndexFunc(onlyPool, given)
	more := slices.IndexFunc(ofPool, given)
	p := o.pool
	switch {
	case asked < 0 && more < 0:
		return false, nil
	case asked < 0:
		return false, cli.UsageError("estimate: --%s is about a server's cache: give --max-model-len too", ofPool[more])
	case poolEngines[o.engine.Name] == nil:
		return false, cli.UsageError("estimate: --%s needs --engine %s", onlyPool[asked], strings.Join(slices.Sorted(mapKeys(poolEngines)), " or --engine "))
	case o.searches() > 0 || o.measured != "" || o.train:
		return false, cli.UsageError("estimate: --%s tells how many requests fit: leave other searches, --measured and --train out", onlyPool[asked])
	case given("memory-fraction") && !(p.fraction > 0 && p.fraction <= 1):
		return false, cli.UsageError("estimate: --memory-fraction %v: want more than 0, and at most 1", p.fraction)
	case given("prefix-caching") && given("no-prefix-caching"):
		return false, cli.UsageError("estimate: --prefix-caching and --no-prefix-caching exclude each other: leave one out")
	case given("kv-cache-memory") && (given("memory-fraction") || given("requests")):
		return false, cli.UsageError("estimate: --kv-cache-memory is the size of the cache: leave --memory-fraction and --requests out")
	}
	for _, n := range []struct {
		flag  string
		value int
	}{{"max-model-len", p.tokens}, {"requests", p.requests}, {"max-requests", p.most}, {"block-size", p.block}, {"draft-tokens", p.drafted}} {
		if given(n.flag) && (n.value < 1 || n.value > 1<<27) {
			return false, cli.UsageError("estimate: --%s %d: want 1 to %d", n.flag, n.value, 1<<27)
		}
	}
	if _, err := p.stateType(); err != nil {
		return false, err
	}
	if _, err := o.generation(); err != nil {
		return false, err
	}
	if device(o).memory == 0 && p.cache == 0 {
		return false, cli.UsageError("estimate: how many requests fit depends on the GPU: give --gpu, such as h100, its memory with --fits 23.5GiB, or the size of the cache with --kv-cache-memory")
	}
	return true, nil
}

// device is the GPU of --gpu or --fits. It has the memory that --fits names, if that names a size.
func device(o estimateOptions) gpu {
	g, ok := gpuNamed(cmp.Or(o.gpu, o.fitsGPU))
	if !ok {
		g = gpu{title: "a GPU", generation: strings.ToLower(o.gpu)}
	}
	if o.fits > 0 && o.fitsGPU == "" {
		g.memory = o.fits
	}
	return g
}

// poolEngines are the engines whose pools are planned.
var poolEngines = map[string]func(o estimateOptions, m poolModel) (*pool, error){"vllm": vllmPool, "sglang": sglangPool}

func mapKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// poolModel is the model whose requests are served.
type poolModel struct {
	specs []serving.CacheSpec
	// modelType is the model_type of config.json; "" if it is not known.
	modelType string
	dtype     alloc.DType // in which it computes
	tokens    int         // of a request, at most
	towers    bool        // it reads images or sounds with a text
	report    *estimate.Report
	step      alloc.Bytes // that a step takes beside weights and cache
	// Weights on one GPU. Engines divide nearly all: what the estimate of a step leaves whole is the most that is whole.
	weights, weightsUpper alloc.Bytes
}

// missingDraft is what is Missing where a layer of the model drafts tokens: models have only the layers that run without drafts.
const missingDraft = "what the layer that drafts weighs"

// drafts reports whether the weights of what drafts are missing.
func (m poolModel) drafts() bool { return slices.Contains(m.report.Missing, missingDraft) }

// pool is what --json prints as pool.
type pool struct {
	Engine   string      `json:"engine"`
	Release  string      `json:"release"`
	Memory   alloc.Bytes `json:"gpu_bytes,omitempty"`
	Fraction float64     `json:"memory_fraction,omitempty"`
	Tokens   int         `json:"max_model_len"`
	Step     int         `json:"max_batched_tokens"`
	Budget   any         `json:"budget,omitempty"` // how the engine comes to the memory of its cache
	Plan     any         `json:"plan,omitempty"`   // how it divides that
	Lower    *poolHolds  `json:"at_least,omitempty"`
	Upper    *poolHolds  `json:"at_most,omitempty"`
	Asked    *poolAsked  `json:"asked,omitempty"`
	TooSmall any         `json:"too_small,omitempty"` // why the engine refuses to start

	title  string
	drafts bool // with weights that are not counted
	answer string
	usual  []string // flags that have the engine's defaults
	parts  []poolPart
	holds  []poolRow
	lines  []string // what else there is to say
	err    error    // why it does not fit
}

// poolHolds is what a cache of the least or of the most memory holds.
type poolHolds struct {
	Cache    alloc.Bytes `json:"cache_bytes"`
	Tokens   int64       `json:"tokens"` // as the engine prints them
	Requests int         `json:"requests"`
}

// poolAsked answers --requests.
type poolAsked struct {
	Requests      int         `json:"requests"`
	Cache         alloc.Bytes `json:"cache_bytes"`
	Fraction      *float64    `json:"memory_fraction"`       // nil if no fraction is enough
	FractionUpper *float64    `json:"memory_fraction_upper"` // with which they fit for sure; nil if none is known to
	Longest       *int        `json:"longest,omitempty"`     // tokens of the longest requests of which so many fit; nil if these do
}

// poolPart is a part of the GPU's memory, and poolRow a number of what the cache holds, with bounds.
type (
	poolPart struct {
		name string
		size estimate.Value
	}
	poolRow struct {
		name                 string
		value, lower, higher string
	}
)

// exactly is a size without a doubt.
func exactly(n alloc.Bytes) estimate.Value { return estimate.Value{Bytes: n, Lower: n, Upper: n} }

// runPool prints how a server divides the memory of a GPU.
func runPool(a *cli.App, name string, o estimateOptions) error {
	o.pool.kvType, o.kv = cmp.Or(map[string]string{"bf16": "bfloat16", "fp16": "float16"}[o.kv], o.kv), ""
	m, e, err := poolOf(name, o)
	if err != nil {
		return err
	}
	e.options.engine.leaveOut("attention") // which changes no pool
	o = e.options
	o.pool.noPrefix = o.pool.noPrefix || !o.pool.prefix
	p, err := poolEngines[o.engine.Name](o, m)
	if err != nil {
		return err
	}
	p.Engine, p.Release, p.Tokens, p.Step = o.engine.Name, cmp.Or(o.engine.release, o.engine.Latest), m.tokens, stepTokens(o)
	p.Memory = device(o).memory
	if m.drafts() && o.pool.cache == 0 {
		p.lines = append(p.lines, capital(missingDraft)+" is not counted, so that no number of requests is certain to fit.")
	}
	if note := o.longerThan(m.tokens, e.pooled.ContextLength()); note != "" {
		p.lines = append(p.lines, capital(note)+".")
	}
	if o.json {
		err = json.NewEncoder(a.Stdout).Encode(struct {
			Schema  string   `json:"schema"`
			Mode    string   `json:"mode"`
			Name    string   `json:"name"`
			Assumed []string `json:"assumed,omitempty"`
			Notes   []string `json:"notes,omitempty"`
			Pool    *pool    `json:"pool"`
		}{estimateSchema, "serve", m.report.Name, slices.Concat(p.usual, e.engineFlags()), p.lines, p})
	} else {
		p.write(a.Stdout, m.report, e)
	}
	if err == nil && p.err != nil {
		return cli.Exit(cli.ExitUnfit, fmt.Errorf("%s: %w", m.report.Name, p.err))
	}
	return err
}

// poolOf returns the model, and what it needs on one GPU.
func poolOf(name string, o estimateOptions) (poolModel, *estimated, error) {
	o.seq = cmp.Or(o.pool.tokens, o.seq)
	e := &estimated{options: o}
	report, err := poolReport(name, o, e)
	if err != nil {
		return poolModel{}, nil, err
	}
	if e.pooled == nil {
		return poolModel{}, nil, fmt.Errorf("%s: what its layers keep of a request is not known", name)
	}
	specs, err := e.pooled.CacheSpecs()
	if err != nil {
		return poolModel{}, nil, err
	}
	o = withDefaultsOf(o, specs, e.pooled.WholeImages())
	e.options = o
	width, err := e.pooled.StepWidth(o.tp)
	if err != nil {
		return poolModel{}, nil, err
	}
	m := poolModel{specs: specs, modelType: modelType(e.pooled), dtype: cmp.Or(e.computes, alloc.BFloat16), tokens: e.Context, towers: e.pooled.HasTowers(), report: report}
	m.step = alloc.Bytes(width) * alloc.Bytes(stepTokens(o)) * alloc.Bytes(m.dtype.Bits()/8)
	held := func(r *estimate.Report) alloc.Bytes { return r.Inference.Weights + r.Inference.Buffers }
	m.weights = held(report)
	packed := float64(m.weights) / float64(max(1, report.Params.Count)*int64(m.dtype.Bits()/8))
	if gpus := alloc.Bytes(o.tp * o.training.pipeline); gpus > 1 {
		o.tp, o.training.pipeline = 1, 1
		whole, err := poolReport(name, o, &estimated{options: o})
		if err != nil {
			return m, e, err
		}
		packed = float64(held(whole)) / float64(max(1, whole.Params.Count)*int64(m.dtype.Bits()/8))
		m.weightsUpper = max(alloc.Bytes(float64(m.weights)*min(1, packed)), held(whole)/gpus)
		m.weights = held(whole) / gpus
	}
	if m.drafts() { // nothing may be left
		m.weightsUpper = m.weights + device(o).memory
	}
	if packed < 0.95 { // kernels pad quantized weights, and hold some in another form
		m.weightsUpper = max(m.weightsUpper, m.weights+m.weights/10)
	}
	return m, e, nil
}

// withDefaultsOf returns the options with the engine's defaults for a model.
func withDefaultsOf(o estimateOptions, specs []serving.CacheSpec, wholeImages bool) estimateOptions {
	run := o.run()
	if slices.ContainsFunc(specs, func(s serving.CacheSpec) bool { return s.Kind == serving.Recurrent }) {
		run.Model = append(run.Model, engines.Recurrent)
	}
	if wholeImages {
		run.Model = append(run.Model, engines.WholeImages)
	}
	*o.parsed = o // flags set the options there
	o.parsed.engine.apply(o.flagSet, run)
	return *o.parsed
}

// stepTokens returns the most tokens of a step.
func stepTokens(o estimateOptions) int { return cmp.Or(o.batched, o.chunk) }

// poolReport estimates the model without a cache of its own: the engine's is planned apart.
func poolReport(name string, o estimateOptions, e *estimated) (*estimate.Report, error) {
	options, err := o.options()
	if err != nil {
		return nil, err
	}
	if o.pool.drafted > 0 {
		options = append(options, estimate.Missing(missingDraft))
	}
	return o.report(name, append(options, estimate.AskedAlone()), e)
}

// write prints the pool.
func (p *pool) write(w io.Writer, r *estimate.Report, e *estimated) {
	fmt.Fprintf(w, "%s: %s parameters, %v, served by %s\n%s\n", r.Name, text.Grouped(r.Params.Count), r.Params.Bytes, p.title, p.answer)
	if len(p.parts) > 0 {
		t := cli.NewTable(w, 1, "Memory of each GPU", "Size", "at least", "at most")
		for i, part := range p.parts {
			if i == len(p.parts)-1 {
				t.AppendSeparator()
			}
			row := table.Row{part.name, part.size.Bytes, "", ""}
			if part.size.Lower != part.size.Upper {
				row[2], row[3] = part.size.Lower, atMost(part.size.Upper)
			}
			t.AppendRow(row)
		}
		t.Render()
	}
	if len(p.holds) > 0 {
		t := cli.NewTable(w, 1, "Cache", "", "at least", "at most")
		for _, row := range p.holds {
			if row.lower == row.higher {
				row.lower, row.higher = "", ""
			}
			t.AppendRow(table.Row{row.name, row.value, row.lower, row.higher})
		}
		t.Render()
	}
	for _, line := range p.lines {
		fmt.Fprintln(w, line)
	}
	said := strings.Join(slices.Concat(p.usual, e.engineFlags()), " ") + fmt.Sprintf(" by default of %s %s", e.options.engine.Title, p.Release)
	if e.options.seq == 0 {
		said = fmt.Sprintf("--max-model-len %d; %s", p.Tokens, said)
	}
	fmt.Fprintf(w, "Assumed, as not given: %s\n", said)
}

// capital returns a note as a sentence begins.
func capital(note string) string { return strings.ToUpper(note[:1]) + note[1:] }

// fractionText writes a fraction with as many digits as it needs.
func fractionText(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// tooSmall returns the error of a plan if it says that not even one request fits.
func tooSmall(err error) *serving.TooSmallError {
	small, _ := errors.AsType[*serving.TooSmallError](err)
	return small
}
