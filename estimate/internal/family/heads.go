package family

import (
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// The classifiers that transformers 5.24.0 makes for any decoder (modeling_layers.py,
// GenericForSequenceClassification and those below it; modeling_gpt2.py and others have the same).
const (
	forSequences = "ForSequenceClassification" // a Linear without a bias
	forTokens    = "ForTokenClassification"    // dropout and a Linear
	forAnswers   = "ForQuestionAnswering"      // a Linear of two columns, where an answer begins and ends
)

// heads reads the head of a decoder. words are the classes that write texts; the others are the base class and the
// classifiers.
func (c *Config) heads(a *Model, words ...string) {
	known := slices.Clone(words)
	for _, end := range []string{forSequences, forTokens, forAnswers} {
		known = append(known, c.Named(end), strings.TrimSuffix(c.Base, "Model")+end) // Gemma3Text has the second
	}
	class := c.Class(known...)
	a.NoHead = !slices.Contains(words, class)
	switch {
	case class == c.Base:
	case strings.HasSuffix(class, forSequences):
		a.Classes = c.Labels()
	case strings.HasSuffix(class, forTokens):
		a.Classes, a.BiasedClasses, a.HeadDropout = c.Labels(), true, c.classifierDropout()
	case strings.HasSuffix(class, forAnswers):
		a.Classes, a.BiasedClasses = 2, true
	}
}

// classifierDropout returns the dropout before a classifier of tokens.
func (c *Config) classifierDropout() float64 {
	return c.Ratio("classifier_dropout", c.Ratio("hidden_dropout", 0.1))
}

// classifier returns the layers in place of a decoder's head. width is that of what they read.
func (c Transformer) classifier(width int) []tape.Layer {
	score := tape.As("score", layer.Linear{In: width, Out: c.Classes, NoBias: !c.BiasedClasses})
	if c.HeadDropout == 0 {
		return []tape.Layer{score}
	}
	return []tape.Layer{tape.As("dropout", layer.Dropout{P: c.HeadDropout}), score}
}

// headWidth returns the width of what a decoder's head reads.
func (c Transformer) headWidth() int { return setting.Or(c.EmbedDim, c.Hidden) }
