package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// ALBERT: BERT whose blocks share their parameters, with a narrower embedding.
var ALBERT = register(&Family{
	Name:   "ALBERT",
	layers: Transformer.albert,
	role:   encoder,
	Types: []Type{
		{Name: "albert", Base: "AlbertModel", Read: readALBERT},
	},
})

// albert builds ALBERT, whose blocks share one set of parameters.
func (c Transformer) albert() []tape.Layer {
	width := setting.Or(c.EmbedDim, c.Hidden)
	layers := []tape.Layer{
		tape.Named{Name: "embeddings", Layer: c.bertEmbeddings(positions{Num: c.Positions, Dim: width, buffered: true})},
		tape.Named{Name: "encoder", Layer: tape.Sequential{
			tape.Named{Name: "embedding_hidden_mapping_in", Layer: layer.Linear{In: width, Out: c.Hidden}},
			tape.Named{Name: "albert_layer_groups.0.albert_layers", Layer: tape.Repeat{N: c.Blocks, Layer: tape.Share(c.albertBlock())}},
		}},
	}
	if !c.NoHead {
		layers = append(layers, first{}, tape.Named{Name: "pooler", Layer: layer.Linear{In: c.Hidden, Out: c.Hidden}}, tape.Named{Name: "pooler_activation", Layer: layer.Tanh{}})
	}
	switch {
	case c.MaskedLM:
		decoder := layer.Linear{In: width, Out: c.Vocab, Split: nn.ByColumns}
		if c.Tied {
			decoder.Tied = "..embeddings.word_embeddings.weight"
		}
		return append(layers, tape.Named{Name: "predictions", Layer: tape.Sequential{
			tape.Named{Name: "dense", Layer: layer.Linear{In: c.Hidden, Out: width}},
			tape.Named{Name: "activation", Layer: c.Activation.Layer(layer.UseNewGELU)},
			tape.Named{Name: "LayerNorm", Layer: layer.LayerNorm{Size: width}},
			tape.Named{Name: "decoder", Layer: decoder},
		}})
	case c.Classes != 0:
		return append(layers, tape.Named{Name: "dropout", Layer: c.headDropout()}, tape.Named{Name: "classifier", Layer: layer.Linear{In: c.Hidden, Out: c.Classes}})
	}
	return layers
}

// albertBlock normalises after each part, and drops what attention makes alone.
func (c Transformer) albertBlock() tape.Layer {
	return tape.Sequential{
		tape.Named{Name: "attention", Layer: tape.Sequential{
			tape.Skip(tape.Inlined{Layer: layer.Attention{
				Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout,
				Names: &layer.AttentionNames{Q: "query", K: "key", V: "value", Out: "dense"},
			}}, tape.Named{Name: "output_dropout", Layer: c.dropout()}),
			tape.Named{Name: "LayerNorm", Layer: layer.LayerNorm{Size: c.Hidden}},
		}},
		tape.Skip(
			tape.Named{Name: "ffn", Layer: layer.Linear{In: c.Hidden, Out: c.FFN, Split: nn.ByColumns}},
			tape.Named{Name: "activation", Layer: c.Activation.Layer(layer.UseNewGELU)},
			tape.Named{Name: "ffn_output", Layer: layer.Linear{In: c.FFN, Out: c.Hidden, Split: nn.ByRows}},
		),
		tape.Named{Name: "full_layer_layer_norm", Layer: layer.LayerNorm{Size: c.Hidden}},
	}
}

// readALBERT reads ALBERT, all of whose blocks share their parameters.
func readALBERT(c *Config, a *Model) {
	if c.whole("num_hidden_groups", 1) != 1 || c.whole("inner_group_num", 1) != 1 {
		c.unknown("num_hidden_groups, inner_group_num", "more than 1")
	}
	c.bert(a, "Albert")
	a.HeadDropout = c.dropout("classifier_dropout_prob")
	c.number(&a.EmbedDim, "embedding_size", 128)
}
