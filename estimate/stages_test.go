package estimate

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// stagesOf cuts a small transformer.
func stagesOf(t *testing.T, tied bool, pipeline int) ([]tape.Stage, *Report) {
	t.Helper()
	layers := family.Transformer{Vocab: 1000, Hidden: 64, FFN: 160, Blocks: 8, Heads: 4, Tied: tied}.Layers()
	opts := []Option{Tokens(1, 16), Train("adam"), Sharding{Pipeline: pipeline}}
	report, err := Model(layer.Public(layers), opts...)
	require.NoError(t, err)
	cfg, err := newConfig(opts)
	require.NoError(t, err)
	memory := tape.Scratches.Get().(*tape.Scratch)
	decl := tape.NewDeclaration(memory, cfg)
	require.NoError(t, decl.Run(tape.Sequential(layers), cfg.Name))
	held, err := tape.Weigh(decl, cfg)
	require.NoError(t, err)
	recorded := newTape(decl, cfg, memory)
	require.NoError(t, record(recorded, tape.Sequential(layers)))
	stages, err := recorded.Stages(held)
	require.NoError(t, err)
	require.Len(t, stages, pipeline)
	return stages, report
}

func weightsOf(stages []tape.Stage) alloc.Bytes {
	var sum int64
	for _, s := range stages {
		sum += s.Load.Weights
	}
	return alloc.Bytes(sum)
}

func TestStagesAddUpToTheModel(t *testing.T) {
	for _, pipeline := range []int{1, 2, 3, 8} {
		stages, report := stagesOf(t, false, pipeline)
		assert.Equal(t, report.Params.Bytes, weightsOf(stages), "%d stages", pipeline)
		for i := range stages[1:] {
			assert.Equal(t, stages[i].End, stages[i+1].Begin)
		}
	}
}

func TestTheLastStageHasACopyOfTheEmbedding(t *testing.T) {
	const embedding = 4 * 1000 * 64
	alone, report := stagesOf(t, true, 1)
	assert.Equal(t, report.Params.Bytes, weightsOf(alone))
	stages, report := stagesOf(t, true, 2)
	assert.Equal(t, report.Params.Bytes+embedding, weightsOf(stages))
	assert.GreaterOrEqual(t, stages[1].Load.State, int64(2*embedding), "with states of its own")
}

// What a stage makes and splits is not there when the stage begins.
func TestStagesMakeWhatTheySplit(t *testing.T) {
	layers := family.Transformer{Vocab: 8, Hidden: 64, FFN: 2048, Blocks: 8, Heads: 4, Family: family.Phi3}.Layers()
	transient := func(pipeline int) alloc.Bytes {
		r, err := Model(layer.Public(layers), Tokens(1, 64), Sharding{Pipeline: pipeline})
		require.NoError(t, err)
		return r.Inference.Transient
	}
	require.LessOrEqual(t, transient(2), transient(1))
}
