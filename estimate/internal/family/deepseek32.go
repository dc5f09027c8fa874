package family

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// DeepSeekV32 is DeepSeek V3 whose attention reads only the tokens that an indexer selects
// (modeling_deepseek_v32.py).
var DeepSeekV32 = &Family{
	Name:  "DeepSeek V3.2",
	Types: []Type{{Name: "deepseek_v32", Base: "DeepseekV32Model", Read: readDeepSeekV32}},
	GGUF:  []GGUF{{Name: "deepseek32", Read: ggufDeepSeekV32}},
}

func readDeepSeekV32(c *Config, a *Model) {
	deepSeekV3(c, a, 3)
	c.sparseLayers(a)
	var index layer.Indexer
	c.Number(&index.Heads, "index_n_heads", 64)
	c.Number(&index.Size, "index_head_dim", 128)
	c.Number(&index.TopK, "index_topk", 2048)
	a.Latent.Indexer = &index
	c.Harmless("layer_types", "head_dim") // all layers are indexed, and the rotating part has a key of its own
}

// ggufDeepSeekV32 reads DeepSeek V3 and the indexer.
func ggufDeepSeekV32(m *Metadata, a *Model) {
	ggufDeepSeek2(m, a)
	index := &layer.Indexer{}
	m.must(&index.Heads, "attention.indexer.head_count")
	m.must(&index.Size, "attention.indexer.key_length")
	m.must(&index.TopK, "attention.indexer.top_k")
	if m.err == nil && (a.Latent.Whole || a.Latent.QueryRank == 0 || index.Size < a.Latent.RopeSize) {
		m.keep(&Error{Where: "metadata", Reason: "an indexer without latent keys and queries, or with keys shorter than what rotates"})
		return
	}
	a.Latent.Indexer = index
}

// GLMMoEDSA is DeepSeek V3.2 with other numbers (GLM-5, modeling_glm_moe_dsa.py).
var GLMMoEDSA = &Family{
	Name:  "GLM-5",
	Types: []Type{{Name: "glm_moe_dsa", Base: "GlmMoeDsaModel", Read: readGLMMoEDSA}},
	GGUF:  []GGUF{{Name: "glm-dsa", Read: ggufGLMMoEDSA}},
}

// ggufGLMMoEDSA reads models in which every layer has an indexer.
func ggufGLMMoEDSA(m *Metadata, a *Model) {
	ggufDeepSeekV32(m, a)
	if types := m.Numbers(m.architecture + ".attention.indexer.types"); slices.Contains(types, 0) {
		m.keep(&Error{Where: "metadata", Reason: "layers that share what an indexer selects", Err: ErrUnknown})
	}
}

// readGLMMoEDSA reads models in which every layer has an indexer.
func readGLMMoEDSA(c *Config, a *Model) {
	readDeepSeekV32(c, a)
	for _, word := range c.Names("indexer_types") {
		if word != "full" {
			c.Unknown("indexer_types", word)
		}
	}
	if c.Whole("index_topk_freq", 1) > 1 || c.Has("index_topk_pattern") {
		c.Unknown("index_topk_freq, index_topk_pattern", "a model whose layers share what an indexer selects")
	}
}
