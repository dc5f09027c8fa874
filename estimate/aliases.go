package estimate

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

type (
	Amount     = tape.Amount
	Backend    = tape.Backend
	Band       = tape.Band
	Base       = tape.Base
	Context    = tape.Context
	Decay      = tape.Decay
	Figure     = tape.Figure
	Form       = tape.Form
	Generation = tape.Generation
	KVConfig   = tape.KVConfig
	Kernel     = tape.Kernel
	LayerError = tape.LayerError
	LoRA       = tape.LoRA
	Loading    = tape.Loading
	Loop       = tape.Loop
	Machine    = tape.Machine
	Offload    = tape.Offload
	Optimizer  = tape.Optimizer
	Option     = tape.Option
	Output     = tape.Output
	Quantized  = tape.Quantized
	Row        = tape.Row
	Sharding   = tape.Sharding
	ZeroGrad   = tape.ZeroGrad
)

const (
	Ada               = tape.Ada
	Adafactor         = tape.Adafactor
	Adam              = tape.Adam
	Adam8bit          = tape.Adam8bit
	AdamW             = tape.AdamW
	AllLinear         = tape.AllLinear
	Ampere            = tape.Ampere
	Blackwell         = tape.Blackwell
	CPU               = tape.CPU
	CUDA              = tape.CUDA
	DecayNone         = tape.DecayNone
	DecayUnknown      = tape.DecayUnknown
	DecayUsed         = tape.DecayUsed
	EagerAttention    = tape.EagerAttention
	EagerLoading      = tape.EagerLoading
	FlashAttention    = tape.FlashAttention
	ForEach           = tape.ForEach
	FormUnknown       = tape.FormUnknown
	Fused             = tape.Fused
	GPTQBase          = tape.GPTQBase
	Hopper            = tape.Hopper
	Int8Base          = tape.Int8Base
	KernelUnknown     = tape.KernelUnknown
	LazyLoading       = tape.LazyLoading
	Lion              = tape.Lion
	LoadingUnknown    = tape.LoadingUnknown
	Momentum          = tape.Momentum
	Muon              = tape.Muon
	NF4               = tape.NF4
	NF4Double         = tape.NF4Double
	NoOptimizer       = tape.NoOptimizer
	OffloadNone       = tape.OffloadNone
	OffloadOptimizer  = tape.OffloadOptimizer
	OffloadParameters = tape.OffloadParameters
	OneByOne          = tape.OneByOne
	OutputDropped     = tape.OutputDropped
	OutputHeld        = tape.OutputHeld
	OutputInPass      = tape.OutputInPass
	OutputUnknown     = tape.OutputUnknown
	OutputWithCache   = tape.OutputWithCache
	Pascal            = tape.Pascal
	SDPA              = tape.SDPA
	SGD               = tape.SGD
	Turing            = tape.Turing
	UnknownGPU        = tape.UnknownGPU
	Volta             = tape.Volta
	WholeBase         = tape.WholeBase
	ZeroGradBackward  = tape.ZeroGradBackward
	ZeroGradFirst     = tape.ZeroGradFirst
	ZeroGradKept      = tape.ZeroGradKept
	ZeroGradUnknown   = tape.ZeroGradUnknown
)

var (
	Activations    = tape.Activations
	Adapt          = tape.Adapt
	All            = tape.All
	Attends        = tape.Attends
	Autocast       = tape.Autocast
	Checkpointed   = tape.Checkpointed
	Contexts       = tape.Contexts
	Frozen         = tape.Frozen
	Gradients      = tape.Gradients
	HeldIn         = tape.HeldIn
	InputOf        = tape.InputOf
	InputShape     = tape.InputShape
	KVCache        = tape.KVCache
	Loops          = tape.Loops
	MixedPrecision = tape.MixedPrecision
	Name           = tape.Name
	Offloaded      = tape.Offloaded
	On             = tape.On
	Precision      = tape.Precision
	PyTorch        = tape.PyTorch
	Quantize       = tape.Quantize
	RunsOn         = tape.RunsOn
	Shard          = tape.Shard
	Stored         = tape.Stored
	Tokens         = tape.Tokens
	Train          = tape.Train
	Weights        = tape.Weights
	WithKVCache    = tape.WithKVCache
)
