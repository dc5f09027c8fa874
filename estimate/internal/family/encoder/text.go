package encoder

import (
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// text describes what an encoder of texts has below its heads, by what differs among BERT's successors.
type text struct {
	width   int          // of the embeddings; 0 means Hidden
	added   []tape.Layer // what is added to the vectors of tokens
	bare    bool         // no norm follows
	masks   bool         // the vectors of padding become 0
	project []tape.Layer // between embeddings and blocks
	name    string       // of what holds the blocks; empty for "encoder"
	first   []tape.Layer // what it holds before them
	blocks  int          // how many there are besides those in first
	from    int          // the number of the first of them
	block   tape.Layer
	last    []tape.Layer // what it holds after them
}

// embeddings returns what precedes the blocks.
func (e text) embeddings(c family.Transformer) tape.Layer {
	width := setting.Or(e.width, c.Hidden)
	embed := append(tape.Sequential{tape.As("word_embeddings", layer.Embedding{Num: c.Vocab, Dim: width, Split: true})}, e.added...)
	if !e.bare {
		embed = append(embed, tape.As("LayerNorm", layer.LayerNorm{Size: width}))
	}
	if e.masks {
		embed = append(embed, tape.Inline(masked{}))
	}
	return tape.As("embeddings", append(embed, tape.As("dropout", c.Drop())))
}

func (e text) layers(c family.Transformer) []tape.Layer {
	layers := append([]tape.Layer{e.embeddings(c)}, e.project...)
	name := e.name
	if name == "" {
		name = "encoder"
	}
	blocks := append(tape.Sequential(e.first), tape.As("layer", tape.Repeat{N: e.blocks, Layer: e.block}.From(e.from)))
	return append(layers, tape.As(name, append(blocks, e.last...)))
}

// predictor are the layers that predict tokens: a projection, its activation, a norm, and all tokens' logits.
type predictor struct {
	width int        // of the embeddings; 0 means Hidden
	act   tape.Layer // after the projection
	tied  string     // the path of the embeddings, whose weight the logits' is if the model is Tied
	names [4]string  // of the layers; an activation without a name is no layer of its own
	apart bool       // the bias of the logits stands beside them, and is their own only if they are tied: see readText
}

func (p predictor) layers(c family.Transformer) tape.Sequential {
	width := setting.Or(p.width, c.Hidden)
	logits := layer.Linear{In: width, Out: c.Vocab, Split: layer.ByColumns}
	if c.Tied {
		logits.Tied = p.tied
	}
	act := tape.Layer(tape.Inline(p.act))
	if p.names[1] != "" {
		act = tape.As(p.names[1], p.act)
	}
	last := tape.Layer(tape.As(p.names[3], layer.Output{Linear: logits}))
	if p.apart && c.HeadBias {
		last = tape.Inline(tape.Sequential{tape.Inline(idleBias{c.Vocab}), last})
	}
	return tape.Sequential{
		tape.As(p.names[0], layer.Linear{In: c.Hidden, Out: width}), act, tape.As(p.names[2], layer.LayerNorm{Size: width}), last,
	}
}

// tokenHeads are the ends of the names of classes that classify each token, without a pooler.
var tokenHeads = []string{"ForTokenClassification", "ForQuestionAnswering"}

// classes reads the class. Its name ends as one of ends, or as those of the classifiers for sequences, tokens, answers
// and choices, which every encoder of texts has.
func classes(c *family.Config, ends ...string) string {
	var known []string
	for _, end := range slices.Concat(ends, tokenHeads, []string{"ForSequenceClassification", choices}) {
		known = append(known, strings.TrimSuffix(c.Base, "Model")+end)
	}
	return c.Class(known...)
}

// choices is the end of the names of classes that give each sequence a number, by which one of several is chosen.
const choices = "ForMultipleChoice"

// writes reports whether a class writes texts, as the families' decoders do. One that masks later tokens would keep keys
// and values, which no encoder does here.
func writes(c *family.Config, class string) bool {
	if !strings.HasSuffix(class, "ForCausalLM") && !strings.HasSuffix(class, "LMHeadModel") {
		return false
	}
	if c.Flag("is_decoder", false) {
		c.Unknown("is_decoder", "true")
	}
	return true
}

// readHead reads what follows the blocks in a class that is neither the base class nor one for masked tokens.
func readHead(c *family.Config, a *family.Model, class string) {
	switch {
	case class == c.Base:
		return
	case strings.HasSuffix(class, choices):
		a.Classes, a.Pooler = 1, true
		return
	}
	a.Classes, a.Spans = c.Labels(), strings.HasSuffix(class, "ForQuestionAnswering")
	a.NoHead = slices.ContainsFunc(tokenHeads, func(end string) bool { return strings.HasSuffix(class, end) })
}

// classifier returns a dropout and the classifier, or the scores of an answer's ends, without a dropout.
func classifier(c family.Transformer, dropout tape.Layer) []tape.Layer {
	if c.Spans {
		return []tape.Layer{tape.As("qa_outputs", layer.Linear{In: c.Hidden, Out: c.Classes})}
	}
	return []tape.Layer{tape.As("dropout", dropout), tape.As("classifier", layer.Linear{In: c.Hidden, Out: c.Classes})}
}

// headDropout returns the dropout before a classifier.
func headDropout(c family.Transformer) tape.Layer {
	c.Dropout = c.HeadDropout
	return c.Drop()
}

// firstClassifier reads the first token, as RoBERTa and ELECTRA do.
func firstClassifier(c family.Transformer, act tape.Layer) tape.Layer {
	return tape.As("classifier", tape.Sequential{
		family.First{},
		tape.Inline(c.Drop()),
		tape.As("dense", layer.Linear{In: c.Hidden, Out: c.Hidden}),
		tape.Inline(act),
		tape.Inline(c.Drop()),
		tape.As("out_proj", layer.Linear{In: c.Hidden, Out: c.Classes}),
	})
}

// readText reads what all of them have. positions is the usual number of them; 0 means none is usual.
func readText(c *family.Config, a *family.Model, positions int) {
	c.Encoder(a)
	c.Number(&a.Vocab, "vocab_size", 0)
	c.Number(&a.Positions, "max_position_embeddings", positions)
	a.Tied = c.Flag("tie_word_embeddings", true)
	a.HeadBias = !a.Tied && c.WrittenBy() >= 5
	a.Stored = func(a *family.Model, has func(tensor string) bool) {
		a.HeadBias = false
		for _, head := range []string{"cls.predictions.", "lm_head.", "predictions."} {
			a.HeadBias = a.HeadBias || has(head+"bias") && has(head+"decoder.bias")
		}
	}
}

// idleBias is a bias that nothing reads: transformers 5 makes one beside that of logits which are not tied.
type idleBias struct{ words int }

func (b idleBias) Declare(d *tape.Declaration) { d.Param("bias", b.words) }

func (idleBias) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }

// counted holds buffers that number the positions.
type counted struct {
	positions int
	names     []string
}

func (counted) Kind() string { return "Buffers" }

func (l counted) Declare(d *tape.Declaration) {
	for _, name := range l.names {
		d.Add(tape.Param{Name: name, Shape: alloc.Shape{1, l.positions}, DType: alloc.Int64, Buffer: true})
	}
}

func (counted) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }
