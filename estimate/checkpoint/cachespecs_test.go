package checkpoint

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
)

// Each layer is described by itself, in the order of the model.
func TestCacheSpecs(t *testing.T) {
	const sizes = `"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000`
	full := serving.CacheSpec{Kind: serving.Full, KVHeads: 2, HeadSize: 32, ValueSize: 32}
	windowed := func(kind string, window int) serving.CacheSpec {
		s := full
		s.Kind, s.Window = kind, window
		return s
	}
	delta := serving.CacheSpec{Kind: serving.Recurrent, Mixer: "delta", Channels: 2*2*64 + 4*64, Kernel: 4, StateHeads: 4, HeadState: 64 * 64, StateType: alloc.Float32}
	mamba := serving.CacheSpec{Kind: serving.Recurrent, Mixer: "mamba2", Channels: 512 + 2*2*16, Groups: 2, GroupChannels: 2 * 16, Kernel: 4, StateHeads: 8, HeadState: 64 * 16}
	wide := serving.CacheSpec{Kind: serving.Full, KVHeads: 1, HeadSize: 64, ValueSize: 64}
	for name, c := range map[string]struct {
		config string
		want   []serving.CacheSpec
	}{
		"a window in some layers": {
			`{"model_type": "gpt_oss", "num_hidden_layers": 2, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128, ` + sizes + `}`,
			[]serving.CacheSpec{windowed(serving.Sliding, 128), full},
		},
		"other heads in layers without a window, and borrowed keys": {
			`{"model_type": "gemma4_text", "num_hidden_layers": 4, "head_dim": 32, "global_head_dim": 64, "num_global_key_value_heads": 1, "attention_k_eq_v": true, "num_kv_shared_layers": 1,
			 "sliding_window": 64, "hidden_size_per_layer_input": 0, "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"], ` + sizes + `}`,
			[]serving.CacheSpec{windowed(serving.Sliding, 64), windowed(serving.Sliding, 64), wide},
		},
		"chunks": {
			`{"model_type": "llama4_text", "num_hidden_layers": 4, "head_dim": 32, "attention_chunk_size": 1024, "intermediate_size_mlp": 512, "num_local_experts": 2, ` + sizes + `}`,
			[]serving.CacheSpec{windowed(serving.Chunked, 1024), windowed(serving.Chunked, 1024), windowed(serving.Chunked, 1024), full},
		},
		"a state in its own type": {
			`{"model_type": "qwen3_5_text", "num_hidden_layers": 2, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
			 "mamba_ssm_dtype": "float32", "layer_types": ["linear_attention", "full_attention"], ` + sizes + `}`,
			[]serving.CacheSpec{delta, full},
		},
		"a mixer beside attention": {
			`{"model_type": "falcon_h1", "num_hidden_layers": 1, "head_dim": 32, "mamba_d_ssm": 512, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_n_groups": 2, "mamba_d_state": 16, ` + sizes + `}`,
			[]serving.CacheSpec{full, mamba},
		},
		"a latent": {
			`{"model_type": "deepseek_v32", "num_hidden_layers": 1, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "kv_lora_rank": 128, "qk_rope_head_dim": 32,
			 "qk_nope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": 64, "index_head_dim": 64, "index_n_heads": 2, "index_topk": 16, "moe_intermediate_size": 64, ` + sizes + `}`,
			[]serving.CacheSpec{{Kind: serving.Latent, Latent: 160, Index: 64}},
		},
		"an encoder's output": {
			`{"model_type": "whisper", "d_model": 256, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512,
			 "num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 448, "vocab_size": 1000}`,
			[]serving.CacheSpec{{Kind: serving.Full, KVHeads: 8, HeadSize: 32, ValueSize: 32}, {Kind: serving.Cross, KVHeads: 8, HeadSize: 32, ValueSize: 32, Source: 1500}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := ParseConfig("model", []byte(c.config))
			require.NoError(t, err)
			specs, err := f.CacheSpecs()
			require.NoError(t, err)
			for i := range specs {
				if i > 0 {
					assert.GreaterOrEqual(t, specs[i].Layer, specs[i-1].Layer)
				}
				specs[i].Layer = 0
			}
			assert.Equal(t, c.want, specs)
		})
	}
	f, err := ParseConfig("model", []byte(`{"model_type": "bert", "num_hidden_layers": 1, `+sizes+`}`))
	require.NoError(t, err)
	_, err = f.CacheSpecs()
	require.ErrorContains(t, err, "it writes no text and has none")
}

// What a token of a step takes: two vectors of the hidden width, and the widest part of a block, which GPUs share.
func TestStepWidth(t *testing.T) {
	f, err := ParseConfig("llama", []byte(`{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 1000}`))
	require.NoError(t, err)
	for gpus, want := range map[int]int64{1: 2*4096 + 3*14336, 4: 2*4096 + 3*14336/4} {
		n, err := f.StepWidth(gpus)
		require.NoError(t, err)
		assert.Equal(t, want, n)
	}
	f, err = ParseConfig("mixtral", []byte(`{"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 1000,
		"num_local_experts": 8, "num_experts_per_tok": 2}`))
	require.NoError(t, err)
	n, err := f.StepWidth(1)
	require.NoError(t, err)
	assert.Equal(t, int64(2*4096+2*(2*14336+14336)), n)
}
