// Package seq2seq has the families of an encoder and a decoder, one file each. It reads no files, and no
// package of families but family.
package seq2seq

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// encoderDecoder runs an encoder over the model's first input and a decoder over its second. The decoder's
// cross-attention reads what the encoder returns.
type encoderDecoder struct {
	encoder, decoder tape.Layer
	shared           tape.Layer // an embedding that neither reads; nil means none
}

func (l encoderDecoder) Declare(d *tape.Declaration) {
	if l.shared != nil {
		d.Layer("shared", l.shared)
	}
	d.Layer("encoder", l.encoder)
	d.Layer("decoder", l.decoder)
}

func (l encoderDecoder) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	text := t.Input(1)
	*layer.Uncached.Of(t) = true // only the decoder has a cache
	if l.shared != nil {
		t.Call("shared", l.shared, x)
	}
	encoded := t.Call("encoder", l.encoder, x)
	*layer.Uncached.Of(t) = false
	return t.Call("decoder", l.decoder, text, encoded)
}

// tiedEmbedding is an Embedding that uses another layer's weight.
type tiedEmbedding struct {
	layer.Embedding
	to string
}

func (tiedEmbedding) Kind() string { return "Embedding" }

func (l tiedEmbedding) Declare(d *tape.Declaration) {
	d.Want("Num", l.Num, 1)
	d.Want("Dim", l.Dim, 1)
	d.Add(tape.Param{Name: "weight", Shape: alloc.Shape{l.Num, l.Dim}, Split: l.Split, Tied: l.to})
}

// seqBlock is a block of BART or, if spoken, of Whisper. A decoder's block has cross-attention.
func seqBlock(c family.Transformer, decoder, spoken bool) tape.Layer {
	parts := []struct {
		norm string
		body tape.Sequential
	}{{"self_attn_layer_norm", tape.Sequential{tape.As("self_attn", seqAttention(c, false, spoken)), tape.Inline(c.Drop())}}}
	if decoder {
		parts = append(parts, parts[0])
		parts[1].norm, parts[1].body = "encoder_attn_layer_norm", tape.Sequential{tape.As("encoder_attn", seqAttention(c, true, spoken)), tape.Inline(c.Drop())}
	}
	mlp := layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Names: layer.MlpNames}
	parts = append(parts, parts[0])
	parts[len(parts)-1].norm, parts[len(parts)-1].body = "final_layer_norm", tape.Sequential{tape.Inline(mlp), tape.Inline(c.Drop())}
	var block tape.Sequential
	for _, p := range parts {
		norm := tape.As(p.norm, layer.LayerNorm{Size: c.Hidden})
		if c.NormAfter {
			block = append(block, tape.Skip(p.body...), norm)
		} else {
			block = append(block, tape.Skip(append(tape.Sequential{norm}, p.body...)...))
		}
	}
	return family.DecoderBlock{Sequential: block}
}

func seqAttention(c family.Transformer, cross, spoken bool) tape.Layer {
	return layer.Attention{
		Hidden: c.Hidden, Heads: c.Heads, Plain: c.Plain, Dropout: c.ScoreDropout, Cross: cross,
		Joined: spoken, Scaled: spoken, NoKeyBias: spoken, Masked: silent(c),
		Names: &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj"},
	}
}

// fixedPositions adds a table of positions that is not trained.
type fixedPositions struct {
	Num, Dim int
	upTo     bool // a text may have fewer positions
}

func (fixedPositions) Kind() string { return "Embedding" }

func (l fixedPositions) Declare(d *tape.Declaration) {
	d.Modules[d.Current].Frozen = true
	layer.Embedding{Num: l.Num, Dim: l.Dim}.Declare(d)
}

func (l fixedPositions) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	if n := x.Shape[1]; n > l.Num || n != l.Num && !l.upTo {
		t.Failf("input %v has another length than the model's %d positions", x.Shape, l.Num)
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, PassGrad: true})
}

var halvesKeys = map[string]string{"d_model": "hidden_size", "encoder_layers": "num_hidden_layers", "encoder_attention_heads": "num_attention_heads", "encoder_ffn_dim": "intermediate_size"}

// halvesSettings reads what BART and Whisper have in common.
func halvesSettings(c *family.Config, a *family.Model) {
	c.Number(&a.Hidden, "d_model", 0)
	c.Number(&a.Blocks, "encoder_layers", 0)
	c.Number(&a.Heads, "encoder_attention_heads", 0)
	c.Number(&a.FFN, "encoder_ffn_dim", 0)
	c.Number(&a.Vocab, "vocab_size", 0)
	c.Number(&a.DecoderBlocks, "decoder_layers", a.Blocks)
	c.Number(&a.DecoderHeads, "decoder_attention_heads", a.Heads)
	c.Number(&a.DecoderFFN, "decoder_ffn_dim", a.FFN)
	a.Tied, a.Dropout, a.ScoreDropout = c.Flag("tie_word_embeddings", true), c.Dropout("dropout"), c.Dropout("attention_dropout")
	c.Activation(a, c.Word("activation_function"), "gelu")
}
