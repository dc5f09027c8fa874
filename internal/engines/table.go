package engines

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Any has the defaults where no engine is named: those of a server, which processes prompts in steps.
var Any = Engine{Defaults: []Default{
	{Flag: "max-batched-tokens", Value: "2048", Mode: "serve", Setting: "--max-num-batched-tokens", Source: batchDefaults, Unless: "prefill-chunk"},
}}

// table has the engines. Each default names the file and the function that sets it, in the engine's repository. Builds of
// llama.cpp are those of the day on which a pull request was merged.
var table = []Engine{
	{
		Name: "transformers", Title: "transformers", Latest: "5.24.0", ReleaseFlag: "transformers", Serves: true, Trains: true,
		Defaults: []Default{
			{Flag: "dtype", Value: "float32", Setting: "dtype", Source: "src/transformers/modeling_utils.py, PreTrainedModel.from_pretrained", Before: "5.0", Unless: "autocast"},
			{Flag: "batch", Value: "8", Mode: train, Setting: "per_device_train_batch_size", Source: trainingArguments},
			{Flag: "optimizer", Value: "adamw", Mode: train, Setting: "optim", Source: trainingArguments},
			{Flag: "optimizer-form", Value: "foreach", Mode: train, Setting: "optim adamw_torch", Source: trainingArguments},
			{Flag: "optimizer-form", Value: "fused", Mode: train, Setting: "optim adamw_torch_fused, with PyTorch 2.8", Source: trainingArguments, Since: "4.54"},
			{Flag: "zero-grad", Value: "first", Mode: train, Setting: "zero_grad after the step", Source: "src/transformers/trainer.py, Trainer._run_epoch"},
			{Flag: "hold-output", Value: "dropped", Mode: train, Setting: "compute_loss returns the loss alone", Source: "src/transformers/trainer.py, Trainer.compute_loss"},
		},
	},
	{
		Name: "trl", Title: "TRL", Latest: "1.16.0", Trains: true,
		Defaults: []Default{
			{Flag: "batch", Value: "8", Setting: "per_device_train_batch_size", Source: trainingArguments},
			{Flag: "seq", Value: "1024", Setting: "max_length", Source: "trl/trainer/sft_config.py, SFTConfig"},
			{Flag: "optimizer", Value: "adamw", Setting: "optim", Source: trainingArguments},
			{Flag: "optimizer-form", Value: "fused", Setting: "optim adamw_torch_fused, with PyTorch 2.8", Source: trainingArguments},
			{Flag: "checkpoint", Value: "blocks", Setting: "gradient_checkpointing", Source: "trl/trainer/base_config.py, _BaseConfig"},
			{Flag: "loss", Value: "trl", Setting: "loss_type nll", Source: "trl/trainer/sft_trainer.py, SFTTrainer.compute_loss", Since: "1.16"},
			{Flag: "zero-grad", Value: "first", Setting: "zero_grad after the step", Source: "src/transformers/trainer.py, Trainer._run_epoch"},
			{Flag: "hold-output", Value: "dropped", Setting: "compute_loss returns the loss alone", Source: "trl/trainer/sft_trainer.py, SFTTrainer.compute_loss"},
		},
	},
	{
		Name: "llama.cpp", Title: "llama.cpp", Latest: "0.5.0", Serves: true, Pool: true,
		Defaults: []Default{
			{Flag: "ubatch", Value: "512", Setting: "--ubatch-size", Source: "common/common.h, common_params"},
			{Flag: "flash-attention", Value: "false", Setting: "--flash-attn", Source: "common/common.h, common_params", Before: "b6325"},
			{Flag: "flash-attention", Value: "auto", Setting: "--flash-attn auto", Source: "common/common.h, common_params (pull request 15434)", Since: "b6325"},
			{Flag: "slots", Value: "1", Setting: "--parallel", Source: "common/common.h, common_params", Before: "b6924"},
			{Flag: "slots", Value: "4", Setting: "--parallel -1", Source: "tools/server/server.cpp, main (pull request 16736)", Since: "b6924"},
			{Flag: "kv-unified", Value: "true", Setting: "no cache for each sequence", Source: "src/llama-context.cpp, llama_context", Before: "b5906"},
			{Flag: "kv-unified", Value: "false", Setting: "--kv-unified", Source: "common/common.h, common_params (pull request 14363)", Since: "b5906"},
			{Flag: "kv-unified", Value: "true", Setting: "--parallel -1", Source: "tools/server/server.cpp, main (pull request 16736)", Since: "b6924", Unless: "slots"},
		},
	},
	{
		Name: "vllm", Title: "vLLM", Latest: "0.33.0", Serves: true, Pool: true,
		Defaults: []Default{
			{Flag: "attention", Value: "flash", Setting: "no attention backend stores scores", Source: "vllm/v1/attention/backends/flash_attn.py, FlashAttentionImpl.forward"},
			{Flag: "max-batched-tokens", Value: "2048", Setting: "--max-num-batched-tokens", Source: batchDefaults, Unless: "prefill-chunk"},
			// A video of Gemma 4 has 32 frames of 78 tokens. Releases without this refuse to start with 2,048.
			{Flag: "max-batched-tokens", Value: "2496", Setting: "--max-num-batched-tokens", Source: "vllm/engine/arg_utils.py, EngineArgs._get_min_mm_batched_tokens (pull request 43051)", Unless: "prefill-chunk", Of: WholeImages},
			{Flag: "max-batched-tokens", Value: "8192", Setting: "--max-num-batched-tokens", Source: batchDefaults, Unless: "prefill-chunk", Memory: 70 * alloc.GiB, Except: "a100"},
			{Flag: "max-batched-tokens", Value: "16384", Setting: "--max-num-batched-tokens", Source: batchDefaults, Unless: "prefill-chunk", Memory: 160 * alloc.GiB, Since: "0.28"},
			{Flag: "no-prefix-caching", Value: "true", Setting: "--no-enable-prefix-caching", Source: "vllm/engine/arg_utils.py, EngineArgs._set_default_chunked_prefill_and_prefix_caching_args (until pull request 50991)", Unless: "prefix-caching", Before: "0.28", Of: Recurrent},
		},
	},
	{
		Name: "sglang", Title: "SGLang", Latest: "0.5.23", Serves: true, Pool: true,
		Defaults: []Default{
			{Flag: "attention", Value: "flash", Setting: "no attention backend stores scores", Source: "python/sglang/srt/layers/attention/flashattention_backend.py, FlashAttentionBackend"},
			{Flag: "max-batched-tokens", Value: "4096", Setting: "--chunked-prefill-size", Source: gpuMemorySettings, Unless: "prefill-chunk"},
			{Flag: "max-batched-tokens", Value: "2048", Setting: "--chunked-prefill-size", Source: gpuMemorySettings, Unless: "prefill-chunk", Memory: 1},
			{Flag: "max-batched-tokens", Value: "4096", Setting: "--chunked-prefill-size", Source: gpuMemorySettings, Unless: "prefill-chunk", Memory: 20 * alloc.GiB},
			{Flag: "max-batched-tokens", Value: "8192", Setting: "--chunked-prefill-size", Source: gpuMemorySettings, Unless: "prefill-chunk", Memory: 60 * alloc.GiB},
			{Flag: "max-batched-tokens", Value: "16384", Setting: "--chunked-prefill-size", Source: gpuMemorySettings, Unless: "prefill-chunk", Memory: 160 * alloc.GiB},
		},
	},
	{
		Name: "deepspeed", Title: "DeepSpeed", Latest: "0.19.8", Trains: true,
		Defaults: []Default{
			{Flag: "dtype", Value: "bfloat16", Setting: "bf16.enabled", Source: "deepspeed/runtime/precision_config.py, DeepSpeedBF16Config"},
			{Flag: "master-weights", Value: "true", Setting: "bf16.enabled", Source: "deepspeed/runtime/zero/stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__"},
			{Flag: "optimizer", Value: "adamw", Setting: "adam_w_mode", Source: "deepspeed/ops/adam/fused_adam.py, FusedAdam"},
			{Flag: "optimizer-form", Value: "fused", Setting: "FusedAdam", Source: "deepspeed/ops/adam/fused_adam.py, FusedAdam"},
			{Flag: "sharded-by", Value: "deepspeed", Setting: "zero_optimization", Source: "deepspeed/runtime/zero/config.py, DeepSpeedZeroConfig"},
		},
	},
	{
		Name: "torchtitan", Title: "torchtitan", Latest: "0.3.0", Trains: true,
		Defaults: []Default{
			{Flag: "batch", Value: "8", Setting: "training.local_batch_size", Source: "torchtitan/config/configs.py, TrainingConfig"},
			{Flag: "optimizer", Value: "adamw", Setting: "optimizer.name", Source: "torchtitan/components/optimizer.py, OptimizersContainer.Config"},
			{Flag: "optimizer-form", Value: "fused", Setting: "optimizer.implementation", Source: "torchtitan/components/optimizer.py, OptimizersContainer.Config"},
			{Flag: "autocast", Value: "bf16", Setting: "training.mixed_precision_param", Source: "torchtitan/distributed/utils.py, maybe_enable_amp", Unless: "replicas"},
			{Flag: "compute-dtype", Value: "bf16", Setting: "training.mixed_precision_param", Source: "torchtitan/distributed/fsdp.py, apply_fsdp_to_decoder", With: "replicas"},
			{Flag: "zero", Value: "3", Setting: "parallelism.data_parallel_shard_degree", Source: "torchtitan/config/configs.py, ParallelismConfig", With: "replicas"},
			{Flag: "sharded-by", Value: "fsdp2", Setting: "fully_shard", Source: "torchtitan/distributed/fsdp.py, apply_fsdp_to_decoder", With: "replicas"},
			{Flag: "shard-ends", Value: "true", Setting: "fully_shard of tok_embeddings, and of norm and lm_head", Source: "torchtitan/distributed/fsdp.py, apply_fsdp_to_decoder", With: "replicas"},
			{Flag: "experts", Value: "grouped", Setting: "torch._grouped_mm", Source: "torchtitan/models/common/moe.py, GroupedExperts"},
			{Flag: "expandable-segments", Value: "true", Setting: "PYTORCH_ALLOC_CONF", Source: "run_train.sh, PYTORCH_ALLOC_CONF"},
			{Flag: "checkpoint", Value: "blocks", Setting: "activation_checkpoint.mode selective", Source: "torchtitan/config/configs.py, ActivationCheckpointConfig"},
			{Flag: "checkpoint-saves", Value: "half", Setting: "activation_checkpoint.mode selective", Source: "torchtitan/distributed/activation_checkpoint.py, _apply_op_sac", Unless: "checkpoint"},
			{Flag: "zero-grad", Value: "first", Setting: "zero_grad before the step", Source: "torchtitan/train.py, Trainer.train_step"},
			{Flag: "loss", Value: "torchtitan", Setting: "loss ChunkedLossWrapper", Source: "torchtitan/models/llama3/config_registry.py, and those of the other models", Since: "0.3"},
			{Flag: "sp", Value: "kept", Setting: "parallelism.enable_sequence_parallel", Source: "torchtitan/config/configs.py, ParallelismConfig"},
			{Flag: "hold-output", Value: "dropped", Setting: "del pred", Source: "torchtitan/train.py, Trainer.forward_backward_step"},
		},
	},
}

const train = "train"

// Functions that set several defaults.
const (
	trainingArguments = "src/transformers/training_args.py, TrainingArguments"
	batchDefaults     = "vllm/engine/arg_utils.py, EngineArgs.get_batch_defaults, of vllm serve"
	gpuMemorySettings = "python/sglang/srt/arg_groups/memory_hook.py, handle_gpu_memory_settings"
)
