package family

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/ggml"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Families whose blocks llama.cpp's graph arranges in another way than Llama's, where that changes what is in memory at once.
// Norms after a part and factors need none of their own.
var (
	parallelBlocks   = []string{"Cohere", "Phi", "GPT-J", "Falcon"} // and those with Transformer.Parallel
	unnormedInputs   = []string{"OLMo 2", "EXAONE 4"}
	secondNorms      = []string{"GPT-NeoX"}
	residualFirst    = []string{"Jamba", "LFM2"}
	sums             = map[string]ggml.Sum{"Falcon": ggml.MLPMixerInput, "Phi": ggml.MixerMLPInput}
	packedHeads      = []string{"Ling 2"}
	manyPositions    = []string{"Qwen3-Next"}
	scaledQueries    = []string{"Gemma 2", "Phi"}
	normedValues     = []string{"Gemma 3n", "Gemma 4"}
	scaledEmbeddings = []string{"Gemma", "Gemma 2", "Gemma 3n", "Gemma 4", "Granite", "Granite MoE", "Granite 4"}
)

// graphOf returns what decides llama.cpp's graph of a model.
func graphOf(c Transformer) ggml.Model {
	s, name := c.style(), c.Family.String()
	of := func(names []string) bool { return slices.Contains(names, name) }
	c.FFN = setting.Or(c.FFN, 4*min(c.Hidden, setting.MaxField))
	m := ggml.Model{Vocab: c.Vocab, Hidden: c.Hidden, Embedded: c.EmbedDim, Scaled: of(scaledEmbeddings), Capped: c.CappedLogits}
	if of(manyPositions) || c.Batched {
		m.Positions = 4
	}
	m.LateOutputs = Own[stepHeads](c) != nil
	m.Deepstack = min(c.Deepstack, MaxBlocks)
	if own := Own[global](c); own != nil {
		m.PerLayer = own.inner
	}
	if own := Own[AltUp](c); own != nil {
		m.PerLayer, m.AltUp = own.Size, ggml.AltUp{Inputs: min(own.Inputs, MaxBlocks), Rank: own.Rank, Inner: own.Size}
	}
	switch s.norm(c).(type) {
	case layer.LayerNorm, layer.WideNorm:
		m.LayerNorm = true
	}
	same := map[BlockKind]ggml.Block{}
	for i := range min(c.Blocks, MaxBlocks) {
		kind := c.Kind(i) &^ Sparse
		if isSparse(c, i) {
			kind |= Sparse
		}
		b, ok := same[kind]
		if !ok {
			b = graphBlock(c, s, kind)
			b.Parallel, b.NoNormsBefore, b.ResidualFirst = c.Parallel || of(parallelBlocks), of(unnormedInputs), of(residualFirst)
			b.SecondNorm, b.Sum = of(secondNorms), sums[name]
			if own := Own[FalconParts](c); own != nil {
				b.SecondNorm = own.TwoNorms
			}
			if a, attends := b.Mixer.(ggml.Attention); attends {
				a.Scaled, a.Packed, a.NormedValues = of(scaledQueries), a.Packed || of(packedHeads), of(normedValues)
				b.Mixer = a
				m.Values = max(m.Values, a.KVHeads*a.ValueSize)
			}
			if l, attends := b.Mixer.(ggml.Latent); attends && l.Whole {
				m.Values = max(m.Values, l.Heads*l.Value)
			}
			same[kind] = b
		}
		m.Blocks = append(m.Blocks, b)
	}
	m.Values = max(m.Values, 1)
	return m
}

// predictingGraphOf returns the graph of the blocks that predict further tokens. They attend to all tokens, and are as the
// last block otherwise.
func predictingGraphOf(c Transformer) ggml.Model {
	m := graphOf(c)
	kind := BlockKind(0)
	if isSparse(c, c.Blocks-1) {
		kind = Sparse
	}
	m.Predicts, m.Blocks = true, []ggml.Block{graphBlock(c, c.style(), kind)}
	return m
}

// rollsBack reports whether llama.cpp keeps several states of recurrent layers, to return to after drafted tokens that were
// wrong (src/llama-context.cpp, cparams.n_rs_seq).
func rollsBack(c Transformer) bool {
	switch own := c.Own.(type) {
	case *layer.DeltaNet:
		return own.Apart
	case *nemotronParts, *ShortConv:
		return true
	}
	return false
}

// isSparse reports whether a block has a mixture of experts.
func isSparse(c Transformer, block int) bool {
	if c.Experts == 0 {
		return false
	}
	if slices.ContainsFunc(c.Kinds, func(k BlockKind) bool { return k&Sparse != 0 }) {
		return c.Kind(block)&Sparse != 0
	}
	return block >= c.DenseBlocks
}

// graphBlock returns a block of this kind.
func graphBlock(c Transformer, s style, kind BlockKind) (b ggml.Block) {
	c.kind = kind
	switch {
	case c.Family == Mamba:
		c.Own = stateSpace(c)
		return ggml.Block{Mixer: graphRecurrence(c)}
	case c.Family == Mamba2:
		return ggml.Block{Mixer: graphMamba2(headSpace(c))}
	case kind&Unattended == 0:
		b.Mixer = graphAttention(c, s, kind)
	}
	if own := c.recurrent(); own != nil && kind&Recurrent != 0 {
		if part := graphRecurrence(c); own.beside {
			b.Beside = part
		} else {
			b.Mixer = part
		}
	}
	if b.MLP = graphMLP(c, s); kind&Sparse != 0 {
		gated := true
		if plain, ok := b.MLP.(ggml.MLP); ok {
			gated = plain.Gated
		}
		b.MLP = ggml.Mixture{
			Experts: c.Experts, TopK: setting.Or(c.TopK, 2), Width: setting.Or(c.ExpertFFN, c.FFN), Gated: gated, Shared: c.SharedFFN, SharedGate: c.SharedGate,
			Biased: c.Router == layer.SigmoidRouter || c.Router == layer.LoneSigmoid, Summed: !c.UnscaledTopK, Scaled: c.Router == layer.SigmoidRouter, Before: c.Family == Llama4,
		}
	}
	return b
}

// graphAttention returns attention in a block of this kind.
func graphAttention(c Transformer, s style, kind BlockKind) ggml.Part {
	if l := c.Latent; l != nil {
		of := ggml.Latent{Heads: c.Heads, QueryRank: l.QueryRank, KVRank: l.KVRank, NopeSize: l.NopeSize, RopeSize: l.RopeSize, Value: l.ValueSize, Still: l.Still, Whole: l.Whole}
		if l.Indexer != nil {
			of.Index = ggml.Index{Heads: l.Indexer.Heads, Size: l.Indexer.Size, TopK: l.Indexer.TopK}
		}
		return of
	}
	of := c.attention(s, kind)
	a := ggml.Attention{
		Heads: of.Heads, KVHeads: setting.Or(c.KVHeads, c.Heads), HeadSize: c.HeadWidth(), HeadGates: Own[stepHeads](c) != nil, Packed: of.Packed, Gated: of.Gated, Normed: c.QKNorm != layer.NoQKNorm,
		Rotates: of.Rotary, Windowed: kind&Windowed != 0, Borrows: kind&Borrowing != 0,
	}
	if own := c.Family.OrLlama().fullHeads; own != nil && !a.Windowed {
		heads, size := own(c)
		a.KVHeads, a.HeadSize = setting.Or(heads, a.KVHeads), setting.Or(size, a.HeadSize)
	}
	a.ValueSize = a.HeadSize
	return a
}

// graphMLP returns the MLP of a block without a mixture.
func graphMLP(c Transformer, s style) ggml.Part {
	switch of := s.mlp(c).(type) {
	case layer.MLP:
		return ggml.MLP{Width: of.FFN}
	case layer.GatedMLP:
		return ggml.MLP{Width: of.FFN, Gated: true, Packed: of.Packed}
	}
	return ggml.MLP{Width: c.FFN, Gated: true}
}

// kernelOf returns the length of the convolutions of a recurrence, or 0 if there are none.
func kernelOf(c Transformer) int {
	part := graphRecurrence(c)
	switch c.Family {
	case Mamba:
		return stateSpace(c).Kernel
	case Mamba2:
		return headSpace(c).Kernel
	}
	switch of := part.(type) {
	case ggml.Mamba:
		return of.Kernel
	case ggml.Mamba2:
		return of.Kernel
	case ggml.DeltaNet:
		return of.Kernel
	case ggml.KimiDelta:
		return of.Kernel
	case ggml.ShortConvolution:
		return of.Kernel
	}
	return 0
}

// graphRecurrence returns the recurrence of the family.
func graphRecurrence(c Transformer) ggml.Part {
	switch own := c.Own.(type) {
	case *layer.StateSpace:
		return ggml.Mamba{Inner: own.Inner, State: own.State, Rank: own.Rank, Kernel: own.Kernel, Normed: own.Normed}
	case *layer.HeadSpace:
		return graphMamba2(*own)
	case *nemotronParts:
		return graphMamba2(own.HeadSpace)
	case *layer.DeltaNet:
		return ggml.DeltaNet{KeyHeads: own.KeyHeads, ValueHeads: own.ValueHeads, KeySize: own.KeySize, ValueSize: own.ValueSize, Kernel: setting.Or(own.Kernel, 4), Repeated: !own.Apart}
	case *layer.KimiDelta:
		return ggml.KimiDelta{Heads: own.Heads, Size: own.Size, Kernel: own.Kernel}
	case *ShortConv:
		return ggml.ShortConvolution{Kernel: own.Kernel}
	}
	return nil
}

func graphMamba2(s layer.HeadSpace) ggml.Part {
	return ggml.Mamba2{Inner: s.Inner, State: s.State, Heads: s.Heads, Groups: max(1, s.Groups), Kernel: s.Kernel, Unnormed: s.Gate == layer.GateAlone}
}
