package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// DistilBERT is BERT without token types and pooler.
var DistilBERT = &family.Family{
	Name:   "DistilBERT",
	Layers: distilBERT,
	Role:   family.Encoder,
	Types: []family.Type{
		{Name: "distilbert", Base: "DistilBertModel", Keys: map[string]string{"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "hidden_dim": "intermediate_size"}, Read: readDistilBERT},
	},
}

func distilBERT(c family.Transformer) []tape.Layer {
	layers := text{
		added: []tape.Layer{tape.As("position_embeddings", family.Positions{Num: c.Positions, Dim: c.Hidden, Buffered: true})},
		name:  "transformer", blocks: c.Blocks, block: distilBlock(c),
	}.layers(c)
	switch {
	case c.MaskedLM:
		layers = append(layers, predictor{
			act: c.Activation.Layer(layer.UseGELU), tied: "embeddings.word_embeddings.weight",
			names: [4]string{"vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"},
		}.layers(c)...)
	case c.Classes != 0 && c.NoHead:
		layers = append(layers, classifier(c, c.Drop())...)
	case c.Classes != 0:
		layers = append(layers, family.First{}, tape.As("pre_classifier", layer.Linear{In: c.Hidden, Out: c.Hidden}), tape.As("activation", layer.ReLU{}))
		layers = append(layers, classifier(c, headDropout(c))...)
	}
	return layers
}

// distilBlock norms after each part. Only the MLP's output has a dropout.
func distilBlock(c family.Transformer) tape.Layer {
	return tape.Sequential{
		tape.Skip(tape.As("attention", layer.Attention{
			Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout,
			Names: &layer.AttentionNames{Q: "q_lin", K: "k_lin", V: "v_lin", Out: "out_lin"},
		})),
		tape.As("sa_layer_norm", layer.LayerNorm{Size: c.Hidden}),
		tape.Skip(tape.As("ffn", family.WithDropout{Name: "dropout", Layer: layer.MLP{
			Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Names: &[3]string{"lin1", "activation", "lin2"},
		}, Dropout: c.Drop()})),
		tape.As("output_layer_norm", layer.LayerNorm{Size: c.Hidden}),
	}
}

func readDistilBERT(c *family.Config, a *family.Model) {
	class := classes(c, "ForMaskedLM")
	readText(c, a, 512)
	a.Dropout = max(c.Dropout("dropout"), c.Dropout("attention_dropout"))
	switch class {
	case "DistilBertForMaskedLM":
		a.MaskedLM = true
	case "DistilBertForSequenceClassification":
		a.Classes, a.HeadDropout = c.Labels(), c.Dropout("seq_classif_dropout")
	default:
		readHead(c, a, class)
		a.HeadDropout = c.Dropout("seq_classif_dropout")
	}
	c.Activation(a, c.Word("activation"), "gelu")
}
