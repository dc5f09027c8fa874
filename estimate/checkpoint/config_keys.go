package checkpoint

import "encoding/json"

// hfConfig has the keys of a Hugging Face config.json that say how large a model
// is. A nil pointer is a key that is absent or null.
type hfConfig struct {
	ModelType     string   `json:"model_type"`
	ClassName     string   `json:"_class_name"` // in place of it in what diffusers writes
	Architectures []string `json:"architectures"`
	DType         string   `json:"dtype"`
	TorchDType    string   `json:"torch_dtype"` // its name up to transformers 4

	HiddenSize   *whole `json:"hidden_size"`
	Layers       *whole `json:"num_hidden_layers"`
	Heads        *whole `json:"num_attention_heads"`
	KVHeads      *whole `json:"num_key_value_heads"`
	HeadSize     *whole `json:"head_dim"`
	Intermediate *whole `json:"intermediate_size"`
	Vocabulary   *whole `json:"vocab_size"`
	Context      *whole `json:"max_position_embeddings"`
	TokenTypes   *whole `json:"type_vocab_size"`
	Near         *whole `json:"local_attention"` // of ModernBERT
	FarEvery     *whole `json:"global_attn_every_n_layers"`
	EmbedWidth   *whole `json:"embedding_size"`
	LayerGroups  *whole `json:"num_hidden_groups"` // of ALBERT
	InnerGroups  *whole `json:"inner_group_num"`
	Window       *whole `json:"sliding_window"`

	Experts         *whole `json:"num_local_experts"`
	QwenExperts     *whole `json:"num_experts"`
	ExpertsPerToken *whole `json:"num_experts_per_tok"`
	ExpertFFN       *whole `json:"moe_intermediate_size"`
	SparseStep      *whole `json:"decoder_sparse_step"`
	DenseLayers     []int  `json:"mlp_only_layers"`
	NormTopK        *bool  `json:"norm_topk_prob"`

	// DeepSeek's.
	RoutedExperts *whole `json:"n_routed_experts"`
	SharedExperts *whole `json:"n_shared_experts"`
	Groups        *whole `json:"n_group"`
	TopGroups     *whole `json:"topk_group"`
	DenseFirst    *whole `json:"first_k_dense_replace"`
	SparseEvery   *whole `json:"moe_layer_freq"`
	QueryRank     *whole `json:"q_lora_rank"`
	KVRank        *whole `json:"kv_lora_rank"`
	RopeSize      *whole `json:"qk_rope_head_dim"`
	NopeSize      *whole `json:"qk_nope_head_dim"`
	ValueSize     *whole `json:"v_head_dim"`

	Text         json.RawMessage `json:"text_config"`   // of a model of images and text
	VisionConfig json.RawMessage `json:"vision_config"` // its tower
	AudioConfig  json.RawMessage `json:"audio_config"`  // its tower of sounds

	// What layers have a sliding window.
	LayerTypes    []string `json:"layer_types"`
	UseWindow     *bool    `json:"use_sliding_window"`
	WindowPattern *whole   `json:"sliding_window_pattern"`
	FullLayers    *whole   `json:"max_window_layers"`

	Tied             *bool    `json:"tie_word_embeddings"`
	AttentionBias    *bool    `json:"attention_bias"`
	MLPBias          *bool    `json:"mlp_bias"`
	QKVBias          *bool    `json:"qkv_bias"`
	QKNorm           *bool    `json:"qk_layernorm"`
	CrossAttention   *bool    `json:"add_cross_attention"`
	ScoreCap         *float64 `json:"attn_logit_softcapping"`
	LogitCap         *float64 `json:"final_logit_softcapping"`
	PositionEncoding string   `json:"position_embedding_type"`
	Rotary           *float64 `json:"partial_rotary_factor"`
	RotaryShare      *float64 `json:"rotary_pct"` // GPT-NeoX's name of it
	RotaryWidth      *whole   `json:"rotary_dim"` // MiniMax's
	Rope             struct {
		Rotary *float64 `json:"partial_rotary_factor"`
	} `json:"rope_parameters"`

	// How blocks are put together.
	Parallel      *bool  `json:"use_parallel_residual"`
	ParallelAttn  *bool  `json:"parallel_attn"`
	NewFalcon     *bool  `json:"new_decoder_architecture"`
	ParallelNorms *whole `json:"num_ln_in_parallel_attn"`
	MultiQuery    *bool  `json:"multi_query"`
	FalconKVHeads *whole `json:"num_kv_heads"`
	FalconFFN     *whole `json:"ffn_hidden_size"`
	Alibi         *bool  `json:"alibi"`
	NormBefore    *bool  `json:"do_layer_norm_before"`
	NormWeights   *bool  `json:"layer_norm_elementwise_affine"`
	AfterNorm     *bool  `json:"apply_residual_connection_post_layernorm"`
	RootNorm      *bool  `json:"rmsnorm"`         // of ChatGLM
	LastNorm      *bool  `json:"post_layer_norm"` // of ChatGLM
	ProjectDim    *whole `json:"word_embed_proj_dim"`
	OptFFN        *whole `json:"ffn_dim"`

	// Which layers do not rotate.
	RotateLayers []int  `json:"no_rope_layers"`
	RotateEvery  *whole `json:"no_rope_layer_interval"`

	ClipQKV      *float64 `json:"clip_qkv"`
	UseQKNorm    *bool    `json:"use_qk_norm"`
	AnyBias      *bool    `json:"bias"`
	OutBias      *bool    `json:"attention_out_bias"`
	UseBias      *bool    `json:"use_bias"`
	EnableBias   *bool    `json:"enable_bias"`
	UseQKVBias   *bool    `json:"use_qkv_bias"`
	HeadBias     *bool    `json:"lm_head_bias"`
	NormBias     *bool    `json:"norm_bias"`
	DecoderBias  *bool    `json:"decoder_bias"`
	ClassBias    *bool    `json:"classifier_bias"`
	SharedExpert *whole   `json:"shared_expert_intermediate_size"`

	HiddenAct          string `json:"hidden_act"`
	HiddenActivation   string `json:"hidden_activation"`   // Gemma and its successors
	ActivationFunction string `json:"activation_function"` // GPT-2
	ActivationName     string `json:"activation"`          // Falcon

	ResidualDropout  float64 `json:"resid_pdrop"`
	EmbeddingDropout float64 `json:"embd_pdrop"`
	AttentionDropout float64 `json:"attn_pdrop"`
	HiddenDropout    float64 `json:"hidden_dropout_prob"`
	ProbsDropout     float64 `json:"attention_probs_dropout_prob"`
	ClassDropout     float64 `json:"seq_classif_dropout"`
	LabelDropout     float64 `json:"classifier_dropout_prob"` // ALBERT's name of it
	PlainDropout     float64 `json:"dropout"`
	AfterDropout     float64 `json:"residual_dropout"`
	BlockDropout     float64 `json:"hidden_dropout"`
	ScoresDropout    float64 `json:"attention_dropout"`

	// GPT-2's names of sizes.
	NEmbd      *whole `json:"n_embd"`
	NLayer     *whole `json:"n_layer"`
	NHead      *whole `json:"n_head"`
	NInner     *whole `json:"n_inner"`
	NPositions *whole `json:"n_positions"`

	// Of encoders and decoders.
	DecoderLayers   *whole  `json:"decoder_layers"`
	DecoderHeads    *whole  `json:"decoder_attention_heads"`
	DecoderFFN      *whole  `json:"decoder_ffn_dim"`
	Buckets         *whole  `json:"relative_attention_num_buckets"`
	FeedForward     string  `json:"feed_forward_proj"`
	DropoutRate     float64 `json:"dropout_rate"`
	SharedEmbedding *bool   `json:"share_encoder_decoder_embeddings"`
	MelBins         *whole  `json:"num_mel_bins"`
	SourcePositions *whole  `json:"max_source_positions"`
	TargetPositions *whole  `json:"max_target_positions"`

	// Of Llama 4.
	DenseFFN     *whole `json:"intermediate_size_mlp"`
	SparseEach   *whole `json:"interleave_moe_layer_step"`
	SparseLayers []int  `json:"moe_layers"`
	ChunkSize    *whole `json:"attention_chunk_size"`

	// Of Qwen3-Next.
	LinearKeyHeads   *whole `json:"linear_num_key_heads"`
	LinearValueHeads *whole `json:"linear_num_value_heads"`
	LinearKeySize    *whole `json:"linear_key_head_dim"`
	LinearValueSize  *whole `json:"linear_value_head_dim"`
	LinearKernel     *whole `json:"linear_conv_kernel_dim"`
	FullEvery        *whole `json:"full_attention_interval"`

	// Of Gemma 3n and its successors.
	SharedLayers *whole          `json:"num_kv_shared_layers"`
	AltUpInputs  *whole          `json:"altup_num_inputs"`
	CorrectScale *bool           `json:"altup_correct_scale"`
	LaurelRank   *whole          `json:"laurel_rank"`
	BlockVocab   *whole          `json:"vocab_size_per_layer_input"`
	BlockEmbed   *whole          `json:"hidden_size_per_layer_input"`
	Sparsity     json.RawMessage `json:"activation_sparsity_pattern"`
	TowerName    string          `json:"architecture"` // timm's
	MelChannels  *whole          `json:"input_feat_size"`
	SoundBlocks  *whole          `json:"conf_num_hidden_layers"`
	SoundHeads   *whole          `json:"conf_num_attention_heads"`
	SoundKernel  *whole          `json:"conf_conv_kernel_size"`

	// Of Mamba.
	StateSize    *whole          `json:"state_size"`
	ConvKernel   *whole          `json:"conv_kernel"`
	ConvBias     *bool           `json:"use_conv_bias"`
	Expand       *float64        `json:"expand"`
	TimeStepRank json.RawMessage `json:"time_step_rank"`

	// Vision.
	ImageSize  *whole            `json:"image_size"`
	PatchSize  *whole            `json:"patch_size"`
	Channels   *whole            `json:"num_channels"`
	Labels     map[string]string `json:"id2label"`
	LabelCount *whole            `json:"num_labels"`

	Depths            []int           `json:"depths"`
	StageWidths       []int           `json:"hidden_sizes"`
	LayerScale        *float64        `json:"layer_scale_init_value"`
	BlockType         string          `json:"layer_type"`
	EarlyHalf         *bool           `json:"downsample_in_first_stage"`
	EarlyPlace        *bool           `json:"downsample_in_bottleneck"`
	WindowSize        *whole          `json:"window_size"`
	DropPath          float64         `json:"drop_path_rate"`
	AbsolutePositions *bool           `json:"use_absolute_embeddings"`
	Depth             *whole          `json:"depth"`
	NumHeads          json.RawMessage `json:"num_heads"`
	EmbedDim          *whole          `json:"embed_dim"`
	MLPRatio          *float64        `json:"mlp_ratio"`
	InChannels        *whole          `json:"in_channels"`
	Merge             *whole          `json:"spatial_merge_size"`
	Taps              []int           `json:"deepstack_visual_indexes"`
	ImagePositions    *whole          `json:"num_position_embeddings"`
	ProjectorOut      *whole          `json:"projector_output_dim"`
	VisionOut         *whole          `json:"vision_output_dim"`
	ProjectorBias     *bool           `json:"multimodal_projector_bias"`
	ProjectionDim     *whole          `json:"projection_dim"`
	ProjectionSize    *whole          `json:"projection_size"`
	MaskToken         *bool           `json:"use_mask_token"`
	SwiGLU            *bool           `json:"use_swiglu_ffn"`

	Quantization *quantization `json:"quantization_config"`

	WeightMap map[string]string `json:"weight_map"` // of an index, which is no config

	raw  json.RawMessage
	file string
	base string // class of the family's model without a head
}
