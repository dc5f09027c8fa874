package estimate

import (
	"fmt"
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
// testdata/torch, in thousandths rounded up. TestTorchBands compares them with the measurements, and
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
	// and 6.2, 9.7 and 7.0 % more with 8.
	measuredConvolutions = deviations{
		saved:     measured.saved,
		inference: errorBounds{Below: measured.inference.Below, Above: 0.10},
		training:  measured.training,
	}
	// Convolutions along a sound on the CPU, whose inputs and gradients oneDNN reorders: of models like wav2vec 2.0 with 4
	// blocks of 192 and 256 these were measured to be 14 % of inference and 20 % of a training step; of its base, 0.2 %.
	measuredSounds = deviations{
		saved:     measured.saved,
		inference: errorBounds{Below: measured.inference.Below, Above: 0.15},
		training:  errorBounds{Below: measured.training.Below, Above: 0.21},
	}
	// Models with recurrent layers: the other memory of their kernels is modelled coarsely.
	measuredRecurrent = deviations{
		saved:     measured.saved,
		inference: errorBounds{Below: 0.475, Above: 0.025},
		training:  errorBounds{Below: 0.053, Above: 0.311},
	}
)

// setBounds gives the values their error bounds, and adds notes that say what these rest on.
func setBounds(t *tape.Tape, r *Report, learn run) {
	of := deviationsOf(t)
	r.retainedBounds, r.Inference.bounds, r.Training.bounds = of.saved, of.inference, of.training
	for _, m := range []*Memory{&r.Inference, &r.Training} {
		if m.Peak.Bytes > 0 { // the weights are there, whatever runs
			m.bounds.Below = min(m.bounds.Below, 1-float64(min(m.Peak.Bytes, m.Weights))/float64(m.Peak.Bytes))
		}
	}
	if layer.Ran.Of(t).Recurrent {
		layer.Ran.Of(t).Unmeasured |= layer.Recurrences
		m := r.Inference
		if t.Cfg.Training {
			m = r.Training
		}
		r.Notes = append(r.Notes, fmt.Sprintf("the peak of the tensors is rough%v: what recurrent layers need while they run is only known coarsely", m.bounds))
	}
	if layer.Ran.Of(t).Stepwise {
		r.Notes = append(r.Notes, "recurrent layers are taken to run in PyTorch's own operations: with kernels made for them (mamba-ssm, flash-linear-attention) less is transient and saved for backward")
	}
	if layer.Ran.Of(t).Held {
		r.Notes = append(r.Notes, "the weights of the parts for images and sound are counted, but none runs through them: what an image needs is not in the values")
	}
	widen(t, r, learn)
	allowWorkspaces(t, r)
	if layer.Ran.Of(t).Rounded {
		r.Notes = append(r.Notes, "the bounds of convolutions in low precision are those that were measured in float32")
	}
	if t.Cfg.Backend == setting.CUDA {
		if doubted(t) > 0 && t.Cfg.Training {
			r.Notes = append(r.Notes, fmt.Sprintf("convolutions are taken to need up to %v of workspace, as on GPUs before Ampere; newer ones may need none: Machine.GPU says which it is", layer.Ran.Of(t).Transformed))
		}
		if layer.Ran.Of(t).Unmeasured != 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("few or no measurements on GPUs are known of %v: the upper bounds allow at least %.0f %% more, as for the kind of model that is met worst; Report.Beside puts a run of yours beside the estimate", layer.Ran.Of(t).Unmeasured, 100*unmeasuredBounds.Above))
		}
	}
}

// doubtUnread raises the upper bounds for settings that were not read.
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
	if more := raise(&r.Inference, grows.Inference); more > 0 && !cfg.Training {
		r.Notes = append(r.Notes, fmt.Sprintf("the upper bound is %v higher because of what was not read", more))
	}
	if more := raise(&r.Training, grows.Training); more > 0 && cfg.Training {
		r.Notes = append(r.Notes, fmt.Sprintf("the upper bound is %v higher because of what was not read", more))
	}
}

// allowAppending lets the upper bounds of inference hold while keys and values are appended. A layer then has old and new
// ones for a moment: with each piece of a prompt, and with the next token, when the prompt's activations are gone.
func allowAppending(r *Report, cfg *setting.Config) {
	m := &r.Inference
	if cfg.Cache == nil || m.Peak.Bytes == 0 {
		return
	}
	more := m.CachePeak - m.Cache
	if cfg.Cache.Prompt >= cfg.Cache.ContextLength {
		more -= m.Transient
	}
	if more > 0 {
		raise(m, float64(more)/float64(m.Peak.Bytes))
	}
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

// raise raises the upper bounds by a share of the peak, and returns how much that is.
func raise(m *Memory, share float64) alloc.Bytes {
	more := alloc.Bytes(share * float64(m.Peak.Bytes))
	m.bounds.Above += share
	for _, v := range []*Value{&m.Footprint.Allocated, &m.Footprint.Reserved, &m.Footprint.Device, &m.Footprint.Needed} {
		if v.Upper > 0 {
			v.Upper += more
		}
	}
	return more
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

// allowWorkspaces lets the upper bounds of the CPU's peaks hold in small models too.
func allowWorkspaces(t *tape.Tape, r *Report) {
	if t.Cfg.Backend != setting.CPU {
		return
	}
	for _, m := range []*Memory{&r.Inference, &r.Training} {
		if m.Peak.Bytes > 0 {
			m.bounds.Above += float64(cpuWorkspaces) / float64(m.Peak.Bytes)
		}
	}
	r.Notes = append(r.Notes, "workspaces on the CPU are those of two threads: they grow with the threads")
}
