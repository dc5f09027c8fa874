package family

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// otherKeys maps other families' keys for the numbers of keys and values.
var otherKeys = map[string]string{
	"n_embd": "hidden_size", "d_model": "hidden_size", "n_layer": "num_hidden_layers", "n_layers": "num_hidden_layers", "num_layers": "num_hidden_layers",
	"n_head": "num_attention_heads", "n_heads": "num_attention_heads", "num_heads": "num_attention_heads",
}

// CacheAlone returns what the config.json of an unknown family says about its keys and values. The error names what is
// missing, or a key that may change them in a way that is not known.
func CacheAlone(t *Table, name string, text json.RawMessage) (Model, error) {
	a := Model{Type: name}
	err := new(error)
	c := newConfig(t, known{Type: Type{Name: name, Keys: otherKeys}}, text, err)
	if c.Given("text_config") {
		inner := c.Value("text_config")
		of := c.typeIn(inner, c.class.Parts["text_config"].Type)
		if k, ok := t.types[of]; ok {
			p := c.of(inner, of)
			p.reading = &reading{}
			p.object = p.reading.at("text_config.", p.class, p.members())
			a.Family = k.Family
			p.Read(p, &a)
			a.Longest = p.longest()
			c.Check("", &a)
			p.noteUnread(&a)
			return a, *err
		}
		c = newConfig(t, known{Type: Type{Name: of, Keys: otherKeys}}, inner, err)
	}
	onlyUsualCache(c)
	c.Number(&a.Hidden, "hidden_size", 0)
	c.Number(&a.Blocks, "num_hidden_layers", 0)
	c.Number(&a.Heads, "num_attention_heads", 0)
	c.Number(&a.KVHeads, "num_key_value_heads", a.Heads)
	c.Number(&a.HeadSize, "head_dim", max(1, a.Hidden/a.Heads))
	cachedLatent(c, &a)
	c.borrowing(&a, 0)
	cachedWindows(c, &a)
	a.Longest = c.longest()
	c.Check("", &a)
	return a, *err
}

// cachedLatent reads multi-head latent attention, whose cache in transformers is the latent. The code that lies beside
// the weights of a type that transformers lacks may cache keys and values instead.
func cachedLatent(c *Config, a *Model) {
	if !c.Has("kv_lora_rank") {
		return
	}
	if c.class.Defaults == nil {
		c.Unknown("kv_lora_rank", string(c.Value("kv_lora_rank")))
	}
	a.Latent, a.KVHeads = &layer.LatentAttention{}, 0
	c.Number(&a.Latent.KVRank, "kv_lora_rank", 0)
	c.Number(&a.Latent.RopeSize, "qk_rope_head_dim", 0)
}

// cachedWindows reads which layers keep the tokens of a window, as DynamicCache does (transformers 5.24, cache_utils.py,
// get_layer_types_and_kwargs): without layer_types all layers have the window, if there is one.
func cachedWindows(c *Config, a *Model) {
	if c.Flag("use_sliding_window", false) {
		c.Unknown("use_sliding_window", "true")
	}
	window, chunk := c.Whole("sliding_window", 0), c.Whole("attention_chunk_size", 0)
	if c.Given("use_sliding_window") {
		window = 0
	}
	types := c.layerTypes(a, "full_attention", "sliding_attention", "chunked_attention", "moe", "mlp")
	if types == nil {
		a.Window, a.Chunked = max(window, chunk), chunk > 0
		if window > 0 && chunk > 0 {
			c.Unknown("attention_chunk_size", fmt.Sprint(chunk))
		}
		a.mark(Windowed, func(int) bool { return a.Window > 0 })
		return
	}
	lengths := map[string]int{"sliding_attention": window, "chunked_attention": chunk}
	for i, kind := range types[:min(len(types), len(a.kinds()))] {
		switch length, windowed := lengths[kind]; {
		case kind == "full_attention":
		case kind == "moe" || kind == "mlp":
			a.Kinds[i] |= Borrowing // it keeps nothing
		case !windowed || length < 1 || a.Window > 0 && a.Window != length:
			c.Unknown("layer_types", kind)
		default:
			a.Window, a.Chunked = length, kind == "chunked_attention"
			a.Kinds[i] |= Windowed
		}
	}
}

// onlyUsualCache keeps an error if a key may say more about keys and values than CacheAlone reads.
func onlyUsualCache(c *Config) {
	keys := maps.Clone(c.defaults)
	maps.Copy(keys, c.file)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		switch string(c.Value(key)) {
		case "", "false", "0", "0.0", "[]", "{}", "\"\"":
			continue // absent, or off
		}
		switch {
		case key == "zero_expert_num": // LongCat has two attentions in each layer, and no key for their number
			c.Unknown(key, string(c.Value(key)))
		case slices.Contains(cacheKeys, key), containsAny(key, ofOthers), c.Has("kv_lora_rank") && slices.Contains(latentKeys, key), c.Has("layer_types") && slices.Contains(layerTypeKeys, key):
		case containsAny(key, ofCaches) || !containsAny(key, notOfCaches):
			c.Unknown(key, string(c.Value(key)))
		}
	}
}

func containsAny(key string, parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(key, part) })
}

// cacheKeys are the keys that CacheAlone reads, and keys about the size of a layer's weights alone.
var cacheKeys = []string{
	"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "layer_types", "sliding_window", "attention_chunk_size",
	"use_sliding_window", "max_window_layers", "num_kv_shared_layers", "per_layer_config", "kv_lora_rank", "qk_rope_head_dim", "text_config",
	"attn_implementation", "_attn_implementation", "attention_dropout", "attn_dropout", "attention_bias", "attn_pdrop",
	"attention_probs_dropout_prob", "attention_out_bias", "output_hidden_states", "output_attentions", "use_cache", "chunk_size_feed_forward", "is_encoder_decoder", "is_decoder",
}

// latentKeys are further keys of multi-head latent attention, which do not change its cache.
var latentKeys = []string{"q_lora_rank", "qk_nope_head_dim", "qk_head_dim", "v_head_dim"}

// layerTypeKeys are keys from which transformers makes the layer_types of a file that has none.
var layerTypeKeys = []string{
	"sliding_window_pattern", "global_attn_every_n_layers", "full_attention_interval", "layer_switch", "no_rope_layer_interval", "no_rope_layers", "full_attn_idxs", "attn_layer_period",
}

// ofOthers are parts of keys about other parts of a layer, or about scores. ofCaches are parts of keys about attention,
// caches and states. notOfCaches are parts of further keys that change neither. A key with none of them is one of which
// nothing is known.
var (
	ofOthers = []string{"expert", "mlp", "moe", "multiplier", "softcap", "router", "rope_", "attention_value_scale"}

	ofCaches = []string{
		"kv", "head", "window", "state", "conv", "mamba", "ssm", "lora_rank", "index", "layer_type", "block_type", "attention", "attn", "cache", "recurrent", "cross", "period",
		"pattern", "share", "loop", "cycle", "repeat", "linear", "chunk", "memory", "local", "global", "encoder", "compress", "time_step", "expand", "hybrid", "sparse_size", "latent",
	}
	notOfCaches = []string{
		"dropout", "pdrop", "bias", "norm", "token_id", "loss", "aux", "vocab", "hidden_act", "activation", "expert", "router", "moe", "rope", "rotary", "scal", "multiplier",
		"initializer", "intermediate", "mlp", "ffn", "tie_", "dff", "dim_ff", "n_ctx", "gating", "sparse_step", "dtype", "max_position", "position", "architectures", "model_type", "transformers_version", "return_", "label",
		"problem_type", "quantization_config", "auto_map", "pretraining_tp", "gradient_checkpointing", "_name_or_path", "softcap", "n_group", "topk_group", "first_k_dense", "topk",
		"task", "init_", "std", "beta", "alpha", "theta", "epsilon", "eps", "max_seq", "n_positions", "output_router", "inner", "mtp", "nextn",
	}
)
