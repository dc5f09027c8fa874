package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// ALBERT is BERT whose blocks share their parameters, with a narrower embedding.
var ALBERT = &family.Family{
	Name:   "ALBERT",
	Layers: albert,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "albert", Base: "AlbertModel", Read: readALBERT}},
}

// albert builds ALBERT, whose blocks share one set of parameters.
func albert(c family.Transformer) []tape.Layer {
	width := setting.Or(c.EmbedDim, c.Hidden)
	layers := []tape.Layer{
		text{width: width, added: bertEmbeddings(c, family.Positions{Num: c.Positions, Dim: width, Buffered: true})}.embeddings(c),
		tape.As("encoder", tape.Sequential{
			tape.As("embedding_hidden_mapping_in", layer.Linear{In: width, Out: c.Hidden}),
			tape.As("albert_layer_groups.0.albert_layers", tape.Repeat{N: c.Blocks, Layer: tape.Share(albertBlock(c))}),
		}),
	}
	if family.Own[pretraining](c) != nil {
		return append(layers, tape.Inline(albertPretraining(c)))
	}
	if !c.NoHead {
		layers = append(layers, family.First{}, tape.As("pooler", layer.Linear{In: c.Hidden, Out: c.Hidden}), tape.As("pooler_activation", layer.Tanh{}))
	}
	switch {
	case c.MaskedLM:
		return append(layers, albertMaskedLM(c))
	case c.Classes != 0:
		return append(layers, classifier(c, headDropout(c))...)
	}
	return layers
}

// albertMaskedLM is the head of AlbertForMaskedLM.
func albertMaskedLM(c family.Transformer) tape.Layer {
	return tape.As("predictions", predictor{
		width: setting.Or(c.EmbedDim, c.Hidden), act: c.Activation.Layer(layer.UseNewGELU), tied: "..embeddings.word_embeddings.weight", names: [4]string{"dense", "activation", "LayerNorm", "decoder"}, apart: true,
	}.layers(c))
}

// albertPretraining returns the pooler, the head of masked tokens, and one that finds whether two sentences stand in order.
func albertPretraining(c family.Transformer) tape.Layer {
	const ordered = "sop_classifier"
	parts := tape.Sequential{
		tape.As("pooler", layer.Linear{In: c.Hidden, Out: c.Hidden}), tape.As("pooler_activation", layer.Tanh{}), albertMaskedLM(c),
		tape.As(ordered, tape.Sequential{tape.As("dropout", headDropout(c)), tape.As("classifier", layer.Linear{In: c.Hidden, Out: c.Classes})}),
	}
	return tape.Module{Name: "AlbertPreTrainingHeads", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		pooled := f.Call("pooler_activation", f.Call("pooler", f.Apply(family.First{}, x)))
		logits := f.Call("predictions", x)
		*family.SentenceScores.Of(f.Tape) = f.Call(ordered, pooled)
		return logits
	}}
}

// albertBlock norms after each part. Only attention's output has a dropout.
func albertBlock(c family.Transformer) tape.Layer {
	return tape.Sequential{
		tape.As("attention", tape.Sequential{
			tape.Skip(tape.Inline(layer.Attention{
				Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout,
				Names: &layer.AttentionNames{Q: "query", K: "key", V: "value", Out: "dense"},
			}),
				tape.As("output_dropout", c.Drop())),
			tape.As("LayerNorm", layer.LayerNorm{Size: c.Hidden}),
		}),
		tape.Skip(
			tape.As("ffn", layer.Linear{In: c.Hidden, Out: c.FFN, Split: layer.ByColumns}),
			tape.As("activation", c.Activation.Layer(layer.UseNewGELU)),
			tape.As("ffn_output", layer.Linear{In: c.FFN, Out: c.Hidden, Split: layer.ByRows}),
		),
		tape.As("full_layer_layer_norm", layer.LayerNorm{Size: c.Hidden}),
	}
}

// readALBERT reads ALBERT, all of whose blocks share their parameters.
func readALBERT(c *family.Config, a *family.Model) {
	if c.Whole("num_hidden_groups", 1) != 1 || c.Whole("inner_group_num", 1) != 1 {
		c.Unknown("num_hidden_groups, inner_group_num", "more than 1")
	}
	readBERT(c, a)
	if family.Own[pretraining](a.Transformer) != nil {
		a.Classes = c.Labels()
	}
	a.HeadDropout = c.Dropout("classifier_dropout_prob")
	c.Number(&a.EmbedDim, "embedding_size", 128)
}
