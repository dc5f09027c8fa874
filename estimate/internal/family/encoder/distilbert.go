package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// DistilBERT is BERT without token types and pooler.
var DistilBERT = family.Register(&family.Family{
	Name:   "DistilBERT",
	Layers: distilBERT,
	Role:   family.Encoder,
	Types: []family.Type{
		{Name: "distilbert", Base: "DistilBertModel", Keys: map[string]string{"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "hidden_dim": "intermediate_size"}, Read: readDistilBERT},
	},
})

func distilBERT(c family.Transformer) []tape.Layer {
	layers := []tape.Layer{
		tape.Named{Name: "embeddings", Layer: tape.Sequential{
			tape.Named{Name: "word_embeddings", Layer: layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}},
			tape.Named{Name: "position_embeddings", Layer: family.Positions{Num: c.Positions, Dim: c.Hidden, Buffered: true}},
			tape.Named{Name: "LayerNorm", Layer: layer.LayerNorm{Size: c.Hidden}},
			tape.Named{Name: "dropout", Layer: c.Drop()},
		}},
		tape.Named{Name: "transformer", Layer: tape.Sequential{tape.Named{Name: "layer", Layer: tape.Repeat{N: c.Blocks, Layer: distilBlock(c)}}}},
	}
	switch {
	case c.MaskedLM:
		decoder := layer.Linear{In: c.Hidden, Out: c.Vocab, Split: nn.ByColumns}
		if c.Tied {
			decoder.Tied = "embeddings.word_embeddings.weight"
		}
		layers = append(layers,
			tape.Named{Name: "vocab_transform", Layer: layer.Linear{In: c.Hidden, Out: c.Hidden}},
			tape.Named{Name: "activation", Layer: c.Activation.Layer(layer.UseGELU)},
			tape.Named{Name: "vocab_layer_norm", Layer: layer.LayerNorm{Size: c.Hidden}},
			tape.Named{Name: "vocab_projector", Layer: decoder})
	case c.Classes != 0:
		layers = append(layers,
			family.First{},
			tape.Named{Name: "pre_classifier", Layer: layer.Linear{In: c.Hidden, Out: c.Hidden}},
			tape.Named{Name: "activation", Layer: layer.ReLU{}},
			tape.Named{Name: "dropout", Layer: headDropout(c)},
			tape.Named{Name: "classifier", Layer: layer.Linear{In: c.Hidden, Out: c.Classes}})
	}
	return layers
}

// headDropout is the dropout before a classifier.
func headDropout(c family.Transformer) tape.Layer {
	if c.HeadDropout == 0 {
		return tape.Identity{}
	}
	return layer.Dropout{P: c.HeadDropout}
}

// distilBlock norms after each part. Only the MLP's output has a dropout.
func distilBlock(c family.Transformer) tape.Layer {
	return tape.Sequential{
		tape.Skip(tape.Named{Name: "attention", Layer: layer.Attention{
			Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout,
			Names: &layer.AttentionNames{Q: "q_lin", K: "k_lin", V: "v_lin", Out: "out_lin"},
		}}),
		tape.Named{Name: "sa_layer_norm", Layer: layer.LayerNorm{Size: c.Hidden}},
		tape.Skip(tape.Named{Name: "ffn", Layer: family.WithDropout{Name: "dropout", Layer: layer.MLP{
			Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Names: &[3]string{"lin1", "activation", "lin2"},
		}, Dropout: c.Drop()}}),
		tape.Named{Name: "output_layer_norm", Layer: layer.LayerNorm{Size: c.Hidden}},
	}
}

func readDistilBERT(c *family.Config, a *family.Model) {
	class := c.Class("DistilBertForMaskedLM", "DistilBertForSequenceClassification")
	c.Encoder(a)
	a.Tied, a.Dropout = c.Flag("tie_word_embeddings", true), max(c.Dropout("dropout"), c.Dropout("attention_dropout"))
	switch class {
	case "DistilBertForMaskedLM":
		a.MaskedLM = true
	case "DistilBertForSequenceClassification":
		a.Classes, a.HeadDropout = c.Labels(), c.Dropout("seq_classif_dropout")
	}
	c.Activation(a, c.Word("activation"), "gelu")
	c.Number(&a.Vocab, "vocab_size", 0)
	c.Number(&a.Positions, "max_position_embeddings", 512)
}
