package estimate

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// deviations are the error bounds of a report's values.
type deviations struct{ saved, inference, training errorBounds }

// The largest deviations of the estimate from what PyTorch was measured to do, over the models in
// testdata/torch, in thousandths rounded up, as fractions of what is not exact: gradients, saved and transient. TestTorchBounds compares them with the measurements, and
// the tests of package checkpoint with other families and models of ordinary sizes. CUDA was not
// measured yet and has the CPU's.
var (
	measured = deviations{
		saved:     errorBounds{Below: 0.001, Above: 0.003},
		inference: errorBounds{Below: 0.011, Above: 0.041},
		training:  errorBounds{Below: 0.015, Above: 0.014},
	}
	// Convolutions on the CPU. oneDNN reorders their weights and inputs: regnet_y_400mf,
	// shufflenet_v2_x1_0 and efficientnet_v2_s needed 3.7, 5.3 and 2.4 % more with a batch of 2,
	// and 6.2, 9.7 and 7.0 % more with 8; ConvNeXt-T in bfloat16 1.7 % more in training.
	measuredConvolutions = deviations{
		saved:     measured.saved,
		inference: errorBounds{Below: measured.inference.Below, Above: 0.10},
		training:  errorBounds{Below: measured.training.Below, Above: 0.02},
	}
	// Convolutions along a sound on the CPU, whose inputs and gradients oneDNN reorders: of models like wav2vec 2.0 with 4
	// blocks of 192 and 256 these were measured to be 14 % of inference, and of a training step 20 % and in bfloat16 35 %; of its base, 0.4 %.
	measuredSounds = deviations{
		saved:     measured.saved,
		inference: errorBounds{Below: measured.inference.Below, Above: 0.15},
		training:  errorBounds{Below: measured.training.Below, Above: 0.35},
	}
	// Models with recurrent layers: the other memory of their kernels is modelled coarsely.
	measuredRecurrent = deviations{
		saved:     measured.saved,
		inference: errorBounds{Below: 0.475, Above: 0.025},
		training:  errorBounds{Below: 0.053, Above: 0.311},
	}
)

// setBounds adds what is uncertain of the tensors, and notes that say what the values rest on.
func setBounds(t *tape.Tape, r *Report, learn run) {
	ran := layer.Ran.Of(t)
	r.retainedBounds = deviationsOf(t).saved
	if ran.Recurrent {
		ran.Unmeasured |= layer.Recurrences
	}
	if ran.Stepwise {
		r.Notes = append(r.Notes, "recurrent layers are taken to run in PyTorch's own operations: with kernels made for them (mamba-ssm, flash-linear-attention) less is transient and saved for backward")
	}
	if ran.Towers && !t.Cfg.TextAlone {
		r.Missing = append(r.Missing, MissingTower)
	}
	if ran.Rounded {
		r.Notes = append(r.Notes, "the bounds of convolutions in low precision are those that were measured in float32")
	}
	open, worst := widen(t, r, learn)
	doubtTensors(t, &r.Inference, false, 0, passing{})
	doubtTensors(t, &r.Training, true, open, worst)
	if t.Cfg.Backend == setting.CPU {
		r.Notes = append(r.Notes, "workspaces on the CPU are those of two threads: they grow with the threads")
	}
}

// doubtTensors adds the terms of a peak's tensors. On a GPU, where fewer peaks were measured alone, what kernels and libraries
// hold beside them counts with them.
// open is how much more there is in the worst case of the settings that are not known, and worst the passes in that case.
func doubtTensors(t *tape.Tape, m *Memory, training bool, open alloc.Bytes, worst passing) {
	of := deviationsOf(t)
	measured, reason := of.inference, "measured peaks of such layers on the CPU were off by as much"
	if training {
		measured = of.training
	}
	if layer.Ran.Of(t).Recurrent {
		reason = "what recurrent layers need while they run is only known coarsely"
	}
	share := func(in amounts, reason string, n alloc.Bytes, b errorBounds) {
		m.doubt(in, "activations", reason, alloc.Bytes(b.Below*float64(n)), alloc.Bytes(math.Ceil(b.Above*float64(n+open))))
	}
	all := m.Gradients + m.Saved + m.Transient
	share(ofPeak, reason, all, measured)
	if t.Cfg.Backend == setting.CPU {
		m.doubt(ofPeak, "workspaces", "PyTorch on the CPU reorders weights, on two threads", cpuWorkspaces/2, cpuWorkspaces)
		return
	}
	width, reason := widthOf(t, training)
	width = errorBounds{max(width.Below, measured.Below), max(width.Above, measured.Above)}
	if !strings.HasSuffix(m.PeakAt, optimizerStep) {
		share(ofBlocks, reason, all, width)
		return
	}
	// All gradients are there, for certain. A pass may need more than the step.
	n := m.Saved + m.Transient
	pass := worst.all - m.Peak.Bytes - open + alloc.Bytes(width.Above*float64(worst.uncertain))
	m.doubt(ofBlocks, "activations", reason, alloc.Bytes(width.Below*float64(n)), max(pass, alloc.Bytes(stepAbove*float64(n+open))))
}

// doubtUnread adds terms for settings that were not read.
func doubtUnread(r *Report, cfg *setting.Config) {
	u := cfg.Unread
	r.NotRead = u.Keys
	if len(u.Foreign) > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("of what was not read, transformers has no %s for this model: its own code reads nothing there", strings.Join(u.Foreign, ", ")))
	}
	grows := u.Growth
	for i, p := range u.Parts {
		share := r.doubted[i]
		grows.Add(setting.Growth{Inference: share * p.Inference, Training: share * p.Training})
	}
	why := "it may bear on sizes and was not read: " + strings.Join(u.Keys, ", ")
	r.Inference.doubt(ofTensors, "config.json", why, 0, alloc.Bytes(grows.Inference*float64(r.Inference.Peak.Bytes)))
	r.Training.doubt(ofTensors, "config.json", why, 0, alloc.Bytes(grows.Training*float64(r.Training.Peak.Bytes)))
}

// doubtAppending lets the upper bounds of inference hold while keys and values are appended. A layer then has old and new
// ones for a moment: with each piece of a prompt, and with the next token, when the prompt's activations are gone.
func doubtAppending(r *Report, cfg *setting.Config) {
	m := &r.Inference
	if cfg.Cache == nil || m.Peak.Bytes == 0 {
		return
	}
	more := m.CachePeak - m.Cache
	if cfg.Cache.Prompt >= cfg.Cache.ContextLength {
		more -= m.Transient
	}
	m.doubt(ofTensors, "keys and values", "a layer has old and new ones while they are appended to", 0, more)
}

// sharesOfParts returns the shares of the weights that the parts of the model have of which something was not read.
func sharesOfParts(decl *tape.Declaration, own *tape.Holding, u setting.Unread) []float64 {
	shares := make([]float64, len(u.Parts))
	for i, p := range u.Parts {
		part := int64(0)
		for at, m := range decl.Modules {
			if slices.ContainsFunc(p.Modules, func(path string) bool { return strings.Contains("."+m.Path+".", "."+path+".") }) {
				part += own.Modules[at].Weights
			}
		}
		shares[i] = float64(part) / float64(max(1, own.Total.Weights))
		if p.Others || p.Modules == nil {
			shares[i] = 1 - shares[i]
		}
	}
	return shares
}

// deviationsOf returns the deviations for the kind of model on the tape.
func deviationsOf(t *tape.Tape) deviations {
	switch ran := layer.Ran.Of(t); {
	case ran.Recurrent:
		return measuredRecurrent
	case ran.Lengthwise > 2 && t.Cfg.Backend == setting.CPU:
		return measuredSounds
	case ran.Convolutions > 1 && t.Cfg.Backend == setting.CPU: // one makes the patches of a transformer
		return measuredConvolutions
	}
	return measured
}

// cpuWorkspaces is the most memory that matrix products and convolutions of small models in
// bfloat16 needed besides their tensors, as measured and rounded up to a power of two: PyTorch on
// the CPU reorders weights, on two threads (checkpoint/testdata/torch). In large models this is
// within the bounds.
const cpuWorkspaces = 256 * alloc.KiB
