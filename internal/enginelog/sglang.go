package enginelog

import (
	"regexp"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// sglangPatterns are the lines of SGLang 0.3 to 0.5. Its GB are GiB. What it calls usage is the difference of the
// device's free memory, whoever took it.
func sglangPatterns() []pattern { return slices.Concat(sglangWeights(), sglangCache()) }

// onSGLang makes a pattern of a line about one rank.
func onSGLang(has, re string, take func(s *scanner, r *Report, d *Device, m []string)) pattern {
	return say(SGLang, has, re, func(s *scanner, m []string) {
		r := s.report(SGLang)
		take(s, r, r.device(sglangRank(s.text)), m)
	})
}

// sglangWeights is the arguments and the weights.
func sglangWeights() []pattern {
	return []pattern{
		// sglang/srt/entrypoints/engine.py
		say(SGLang, "server_args=", `server_args=(?:ServerArgs\()?.*model_path='([^']+)'`, func(s *scanner, m []string) {
			r := s.begin(SGLang)
			r.Model = m[1]
			if f := sglangFraction.FindStringSubmatch(s.text); f != nil {
				r.Capacity.Fraction = fraction(f[1])
			}
			if n := sglangParallel.FindStringSubmatch(s.text); n != nil {
				r.Capacity.Parallel = count(n[1])
			}
		}),
		// sglang/srt/model_executor/model_runner.py
		say(SGLang, "Init torch distributed", `Init torch distributed ends\..* mem usage=SIZE`, func(s *scanner, m []string) {
			sglangStarts(s, nil).device(sglangRank(s.text)).put(Outside, size(m[1], m[2]))
		}),
		say(SGLang, "Load weight begin", `Load weight begin\. avail mem=SIZE`, func(s *scanner, m []string) {
			free, name := size(m[1], m[2]), sglangRank(s.text)
			r := sglangStarts(s, free)
			d := r.device(name)
			if d.Free == nil {
				d.Free = free
			}
			d.Left = free
		}),
		onSGLang("Load weight end", `Load weight end\..*avail mem=SIZE(?:, mem usage=SIZE)?`, func(_ *scanner, _ *Report, d *Device, m []string) {
			left := size(m[1], m[2])
			if m[4] != "" {
				d.more(Weights, size(m[3], m[4]))
			} else if d.Left != nil && left != nil {
				taken := *d.Left - *left
				d.more(Weights, &taken)
			}
			keep(&d.Left, left)
			d.loaded = left
		}),
		// The tokens of the layers that see everything; the pool of the others is smaller.
		say(SGLang, "full_layer_tokens=", `full_layer_tokens=NUM`, func(s *scanner, m []string) {
			r := s.report(SGLang)
			r.full = count(m[1])
			keep(&r.Capacity.Tokens, r.full)
		}),
	}
}

// sglangCache is the KV cache, graphs, and what fits.
func sglangCache() []pattern {
	return []pattern{
		// sglang/srt/mem_cache/memory_pool.py; those of windowed models have a line for each sort of layer.
		onSGLang("is allocated", `KV Cache is allocated\.(?: dtype: \S+,)?(?: #tokens: NUM,)? K size: SIZE, V size: SIZE`, func(_ *scanner, r *Report, d *Device, m []string) {
			d.more(Cache, size(m[2], m[3]))
			d.more(Cache, size(m[4], m[5]))
			takePool(r, count(m[1]))
		}),
		onSGLang("is allocated", `KV Cache is allocated\.(?: dtype: \S+,)?(?: #tokens: NUM,)? KV size: SIZE`, func(_ *scanner, r *Report, d *Device, m []string) {
			d.more(Cache, size(m[2], m[3]))
			takePool(r, count(m[1]))
		}),
		onSGLang("Mamba Cache is allocated", `conv_state size: SIZE,? ssm_state size: SIZE(?: intermediate_ssm_state_cache size: SIZE,? intermediate_conv_window_cache size: SIZE)?`,
			func(_ *scanner, _ *Report, d *Device, m []string) {
				for i := 1; i < len(m); i += 2 {
					if m[i+1] != "" {
						d.more(States, size(m[i], m[i+1]))
					}
				}
			}),
		onSGLang("Memory pool end", `Memory pool end\. avail mem=SIZE`, func(_ *scanner, r *Report, d *Device, m []string) {
			left := size(m[1], m[2])
			noteUnexplained(r, d, left)
			keep(&d.Left, left)
		}),
		// The order of the two changed in 0.5.
		onSGLang("raph begin", `Capture .*graph begin\..*avail mem=SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { keep(&d.Left, size(m[1], m[2])) }),
		onSGLang("raph end", `Capture .*graph end\..*mem usage=SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { d.more(Graphs, size(m[1], m[2])) }),
		onSGLang("raph end", `Capture .*graph end\..*avail mem=SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { keep(&d.Left, size(m[1], m[2])) }),
		// sglang/srt/managers/scheduler.py
		say(SGLang, "max_total_num_tokens=", `max_total_num_tokens=NUM, .*max_running_requests=NUM(?:, context_len=NUM)?`, func(s *scanner, m []string) {
			c := &s.report(SGLang).Capacity
			c.Tokens = count(m[1])
			keep(&c.MaxRequests, count(m[2]))
			keep(&c.Context, count(m[3]))
		}),
		onSGLang("available_gpu_mem=", `available_gpu_mem=SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { keep(&d.Left, size(m[1], m[2])) }),
		say(SGLang, "Not enough memory", `Not enough memory\. Please try to increase --mem-fraction-static`, func(s *scanner, _ []string) {
			s.fails(SGLang, Failure{Reason: NoMemoryForCache, Of: Cache})
		}),
		say(SGLang, "leave no GPU memory for the KV cache", `leave no GPU memory for the KV cache(?: under --mem-fraction-static=NUM)?(?:\. Raise --mem-fraction-static above NUM)?`, func(s *scanner, m []string) {
			s.fails(SGLang, Failure{Reason: NoMemoryForCache, Of: Cache})
			keep(&s.now.Capacity.Fraction, fraction(m[1]))
			if m[2] != "" {
				s.now.note("SGLang says that --mem-fraction-static must be above %s.", m[2])
			}
		}),
	}
}

// sglangStarts returns the report of a rank that begins to load: another one if the server was ready, or if what it loaded
// before is gone. A draft model is loaded beside the first.
func sglangStarts(s *scanner, free *alloc.Bytes) *Report {
	r := s.report(SGLang)
	d := r.Find(sglangRank(s.text))
	if d == nil || !has(d, Weights) {
		return r
	}
	if r.Capacity.MaxRequests != nil || free != nil && d.Left != nil && *free > *d.Left+alloc.GiB {
		return s.begin(SGLang)
	}
	return r
}

var (
	sglangFraction = regexp.MustCompile(`mem_fraction_static=([0-9.]+)`)
	sglangParallel = regexp.MustCompile(`\btp_size=(\d{1,6})`)
	sglangPrefix   = regexp.MustCompile(`\[(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d((?: (?:DP|TP|PP|EP|ATTN_\w+?|MOE_\w+?)\d{1,6})+)\]`)
)

// sglangRank returns the rank that a line names: "[2025-10-16 09:06:22 DP1 TP5]" is "DP1 TP5".
func sglangRank(line string) string {
	if m := sglangPrefix.FindStringSubmatch(line[:min(len(line), 512)]); m != nil {
		return strings.TrimSpace(m[1])
	}
	return ""
}

// takePool takes the tokens of a pool; of several the smallest counts, unless the log says which one is meant.
func takePool(r *Report, tokens *int64) {
	if r.full == nil {
		least(&r.Capacity.Tokens, tokens)
	}
}

// noteUnexplained notes memory that went between the loading of the weights and the end of the cache's allocation, and that
// the cache does not have.
func noteUnexplained(r *Report, d *Device, left *alloc.Bytes) {
	cache, ok := d.Get(Cache)
	states, _ := d.Get(States)
	if !ok || left == nil || d.loaded == nil {
		return
	}
	if gone := *d.loaded - *left - cache - states; gone > 2*alloc.GiB {
		r.note("%sWhile the KV cache was allocated %v more went than it has: another process on the device, or buffers that the log does not name.", onDevice(d), gone)
	}
}

func onDevice(d *Device) string {
	if d.Name == "" {
		return ""
	}
	return d.Name + ": "
}
